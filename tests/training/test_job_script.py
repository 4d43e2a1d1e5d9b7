"""What the batch script decides when the ranks have ended, with srun and scontrol replaced by stubs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from nnqs_lightning.training.submit import Resources, script

RESOURCES = Resources("nnqs", 2, 4, 4, 8, "4:00:00", 120, "log")

SRUN = """#!/bin/bash
printf '%s\\n' "$@" >"$STUBS/srun-arguments"
[[ -z ${STUB_MARKER:-} ]] || echo "$STUB_MARKER" >"$NNQS_REQUEUE_MARKER"
exit "${STUB_STATUS:-0}"
"""
SCONTROL = """#!/bin/bash
case "$1 $2" in
"show hostnames") echo first-node; echo second-node ;;
"show job") echo "JobId=7 JobState=${STUB_STATE:-RUNNING} Reason=None" ;;
*) echo "$@" >>"$STUBS/requeues" ;;
esac
"""


@pytest.fixture
def stubs(tmp_path: Path) -> Path:
    for name, content in {"srun": SRUN, "scontrol": SCONTROL, "sleep": "#!/bin/bash\n"}.items():
        (tmp_path / name).write_text(content)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "job.sbatch").write_text(script(RESOURCES, {}, ["--config", "h2.yaml"]))
    return tmp_path


def run(stubs: Path, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    job = {
        "STUBS": stubs,
        "SLURM_SUBMIT_DIR": stubs,
        "SLURM_JOB_ID": 7,
        "SLURM_JOB_NAME": "nnqs",
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_JOB_NUM_NODES": 2,
        "SLURM_NTASKS": 8,
        "SLURM_CPUS_PER_TASK": 8,
        "PATH": f"{stubs}:{os.environ['PATH']}",
        **settings,
    }
    command = ["bash", str(stubs / "job.sbatch"), *arguments]
    environment = {name: str(value) for name, value in job.items()}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def requeues(stubs: Path) -> list[str]:
    record = stubs / "requeues"
    return record.read_text().splitlines() if record.exists() else []


def test_ranks_and_run_folder_are_the_jobs_whatever_the_arguments_say(stubs: Path) -> None:
    assert run(stubs, "--model.lr", "a b", "--trainer.devices", "1").returncode == 0
    arguments = (stubs / "srun-arguments").read_text().splitlines()
    assert arguments[:6] == ["--kill-on-bad-exit=1", "python", "-m", "nnqs_lightning", "fit", "--config"]
    assert "a b" in arguments
    last = arguments[-8:]
    assert dict(zip(last[::2], last[1::2], strict=True)) == {
        "--trainer.num_nodes": "2",
        "--trainer.devices": "4",
        "--trainer.default_root_dir": "runs/nnqs-7",
        "--ckpt_path": "auto",
    }


@pytest.mark.parametrize("status", [0, 2])
def test_an_end_or_a_mistake_is_not_repeated(stubs: Path, status: int) -> None:
    assert run(stubs, STUB_STATUS=status).returncode == status
    assert requeues(stubs) == []


def test_a_marker_requeues_the_job_or_the_task_of_an_array(stubs: Path) -> None:
    run(stubs, STUB_STATUS=143, STUB_MARKER="SIGUSR1 at step 9")
    run(stubs, STUB_STATUS=75, STUB_MARKER="SIGUSR1 at step 9", SLURM_ARRAY_JOB_ID=6, SLURM_ARRAY_TASK_ID=2)
    assert requeues(stubs) == ["requeue 7", "requeue 6_2"]


def test_a_cancelled_job_stays_away_and_is_no_success(stubs: Path) -> None:
    done = run(stubs, STUB_STATUS=143, STUB_MARKER="SIGTERM at step 9", STUB_STATE="CANCELLED")
    assert (done.returncode, requeues(stubs)) == (143, [])


def test_requeues_are_capped(stubs: Path) -> None:
    done = run(stubs, STUB_STATUS=75, STUB_MARKER="SIGUSR1 at step 9", SLURM_RESTART_COUNT=5, NNQS_MAX_REQUEUES=5)
    assert (done.returncode, requeues(stubs)) == (75, [])
    assert "requeued 5 times already (NNQS_MAX_REQUEUES)" in done.stdout


def test_deaths_without_progress_are_capped_and_progress_resets_them(stubs: Path) -> None:
    def die(n: int) -> None:
        for _ in range(n):
            run(stubs, STUB_STATUS=137)

    die(5)
    assert len(requeues(stubs)) == 3
    (stubs / "runs/nnqs-7/checkpoints/step-00000010").mkdir(parents=True)
    die(5)
    assert len(requeues(stubs)) == 6


def test_a_task_takes_its_line_of_the_sweep_or_its_number_as_the_seed(stubs: Path) -> None:
    (stubs / "sweep.txt").write_text("--model.a 1\n--model.a 2 --model.b x\n")
    task = {"SLURM_ARRAY_JOB_ID": 6, "SLURM_ARRAY_TASK_ID": 2}
    run(stubs, NNQS_SWEEP="sweep.txt", **task)
    assert (stubs / "srun-arguments").read_text().splitlines()[7:11] == ["--model.a", "2", "--model.b", "x"]
    run(stubs, **task)
    assert "--seed_everything\n2\n" in (stubs / "srun-arguments").read_text()
    beyond = run(stubs, NNQS_SWEEP="sweep.txt", **{**task, "SLURM_ARRAY_TASK_ID": 3})
    assert (beyond.returncode, beyond.stderr) == (2, "error: sweep.txt has no line 3\n")


def test_the_sites_file_is_sourced_and_may_hold_a_container(stubs: Path) -> None:
    (stubs / "site.sh").write_text("launch=(apptainer exec image.sif)\nexport NNQS_RUNS=$SLURM_SUBMIT_DIR/scratch\n")
    run(stubs, NNQS_ENV="site.sh")
    assert (stubs / "srun-arguments").read_text().splitlines()[1:5] == ["apptainer", "exec", "image.sif", "python"]
    assert (stubs / "scratch/nnqs-7").is_dir()
