# What is this site's own; every script of this folder sources it (another file with NNQS_ENV=FILE). It runs on the
# job's first node, before srun, and srun hands its variables on to every rank. Uncomment what applies.

# Python: modules, then the virtual environment that nnqs_lightning is installed in.
#   module purge && module load python/3.11 cuda/12.4
#   source "$HOME/venvs/nnqs/bin/activate"
if [[ -f .venv/bin/activate ]]; then source .venv/bin/activate; fi

# Run folders: a file system that all nodes share and that survives the job. Default: runs/ where sbatch was called.
#   export NNQS_RUNS=$SCRATCH/nnqs

# Container: the command that srun starts python in.
#   launch=(apptainer exec --nv --bind "$PWD" "$HOME/nnqs.sif")

# Network: the interface between the nodes, for NCCL and for gloo, and more to read when ranks do not find each other.
#   export NCCL_SOCKET_IFNAME=ib0 GLOO_SOCKET_IFNAME=ib0
#   export NCCL_DEBUG=WARN
# Rendezvous: the job's first node by name, unless that name does not resolve on the others.
#   export MASTER_ADDR=10.0.0.1

# Threads of a rank: cpus-per-task, unless the libraries should take fewer.
#   export OMP_NUM_THREADS=4
# Give up after so many requeues, and after so many deaths of a rank without a new checkpoint in between.
#   export NNQS_MAX_REQUEUES=100 NNQS_MAX_CRASHES=3
