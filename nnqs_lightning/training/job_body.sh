# ---- From here on every script is the same. What is a site's own belongs into env.sh. ----
set -euo pipefail
cd "${SLURM_SUBMIT_DIR:?start this script with sbatch}"
export SLURM_EXPORT_ENV=ALL # sbatch --export=NONE would hide PATH from srun
launch=()                   # env.sh may put a container's command here
env_file=${NNQS_ENV:-slurm/env.sh}
if [[ -f $env_file ]]; then source "$env_file"; fi

job=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}
run_dir=${NNQS_RUN_DIR:-${NNQS_RUNS:-runs}/$SLURM_JOB_NAME-$job}
if [[ -n ${NNQS_RUN_DIR:-} && -n ${SLURM_ARRAY_TASK_ID:-} ]]; then run_dir+=/task-$SLURM_ARRAY_TASK_ID; fi
mkdir -p "$run_dir"

# A task of an array takes its line of the sweep, or its number as the seed.
if [[ -n ${SLURM_ARRAY_TASK_ID:-} ]]; then
    if [[ -n ${NNQS_SWEEP:-} ]]; then
        read -r -a line < <(sed -n "${SLURM_ARRAY_TASK_ID}p" "$NNQS_SWEEP") || true
        [[ ${#line[@]} -gt 0 ]] || { echo "error: $NNQS_SWEEP has no line $SLURM_ARRAY_TASK_ID" >&2; exit 2; }
        set -- "$@" "${line[@]}"
    else
        set -- "$@" --seed_everything "$SLURM_ARRAY_TASK_ID"
    fi
fi

export MASTER_ADDR=${MASTER_ADDR:-$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)}
export MASTER_PORT=${MASTER_PORT:-$((15000 + SLURM_JOB_ID % 10000))}
export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1} SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}
export NNQS_REQUEUE_MARKER=$run_dir/requeue NNQS_REFUSAL_MARKER=$run_dir/refused
rm -f "$NNQS_REQUEUE_MARKER" "$NNQS_REFUSAL_MARKER"
echo "$(date '+%F %T') job $job, start $((${SLURM_RESTART_COUNT:-0} + 1)), on $SLURM_JOB_NODELIST, run folder $run_dir"

# scancel and preemption send SIGTERM to this shell too: it outlives the step to decide what comes next.
trap ':' TERM
status=0
srun --kill-on-bad-exit=1 "${launch[@]}" python -m nnqs_lightning fit "${defaults[@]}" "$@" \
    --trainer.num_nodes "$SLURM_JOB_NUM_NODES" --trainer.devices "$((SLURM_NTASKS / SLURM_JOB_NUM_NODES))" \
    --trainer.default_root_dir "$run_dir" --ckpt_path auto || status=$?

requeue() {
    local restarts=${SLURM_RESTART_COUNT:-0} most=${NNQS_MAX_REQUEUES:-100}
    if ! scontrol show job -o "$job" | grep -q 'JobState=RUNNING'; then
        echo "$(date '+%F %T') $1; the job was cancelled, so it is not requeued"
    elif ((restarts >= most)); then
        echo "$(date '+%F %T') $1; requeued $restarts times already (NNQS_MAX_REQUEUES): submit it again to go on"
    else
        echo "$(date '+%F %T') $1; requeued ($((restarts + 1)) of at most $most)"
        scontrol requeue "$job" && sleep 60
    fi
    exit $((status ? status : 75))
}

if [[ -e $NNQS_REQUEUE_MARKER ]]; then
    requeue "$(cat "$NNQS_REQUEUE_MARKER")"
elif [[ -e $NNQS_REFUSAL_MARKER ]]; then
    exit 2 # a mistake that another start would only repeat; srun's status may be that of a rank it killed
elif ((status == 0 || status == 2)); then
    exit "$status"
fi
# A rank died. Start again from the last checkpoint, unless that has happened too often without a new one.
newest=$({ find "$run_dir/checkpoints" -maxdepth 1 -name 'step-*' -printf '%f\n' 2>/dev/null || true; } | sort | tail -n 1)
read -r before crashes 2>/dev/null <"$run_dir/.crashes" || { before=none crashes=0; }
if [[ ${newest:-start} != "$before" ]]; then crashes=0; fi
echo "${newest:-start} $((crashes + 1))" >"$run_dir/.crashes"
if ((crashes >= ${NNQS_MAX_CRASHES:-3})); then
    echo "$(date '+%F %T') a rank died (status $status) for the $((crashes + 1)). time at ${newest:-the start}: given up"
    exit "$status"
fi
requeue "a rank died (status $status)"
