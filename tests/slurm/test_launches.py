"""Scripts that SLURM takes as they are, and launches that say what is wrong instead of waiting for ever."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from one_host_cluster import OneHostCluster

REPOSITORY = Path(__file__).parents[2]
SCRIPTS = sorted((REPOSITORY / "slurm").glob("*.sbatch"))
FIT = ["--config", "configs/h2.yaml", "--trainer.accelerator", "cpu", "--trainer.max_steps", "1"]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_sbatch_accepts_every_script_unmodified(cluster: OneHostCluster, script: Path) -> None:
    cluster.run("sbatch", "--test-only", str(script), "--config", "configs/h2.yaml")


def submit(cluster: OneHostCluster, runs: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nnqs_lightning", "submit", "--run-dir", str(runs / "submitted")]
    return subprocess.run(
        [*command, "--env", str(runs / "env.sh"), *arguments],
        env=cluster.environment,
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )


def test_submit_tells_job_and_log_and_chains_the_next(cluster: OneHostCluster, runs: Path) -> None:
    done = submit(cluster, runs, "--skip-config-check", "--nodes", "2", "--sbatch=--hold", "--job-name", "chain", *FIT)
    assert done.returncode == 0, done.stderr
    job = re.search(r"job (\d+) submitted", done.stdout)
    assert job is not None
    assert f"tail -F {runs}/submitted/slurm-{job[1]}.log" in done.stdout
    after = submit(cluster, runs, "--skip-config-check", "--after", job[1], "--array", "1-2", *FIT)
    following = re.search(r"job (\d+) submitted", after.stdout)
    assert following is not None, after.stderr
    assert f"afterany:{job[1]}" in cluster.job(following[1])["Dependency"]
    cluster.run("scancel", job[1], following[1])


def test_submit_checks_with_sbatch_and_reads_the_configuration(cluster: OneHostCluster, runs: Path) -> None:
    assert submit(cluster, runs, "--test-only", "--skip-config-check", "--gpus-per-node", "4", *FIT).returncode == 0
    wrong = submit(cluster, runs, "--skip-config-check", "--partition", "nowhere", *FIT)
    assert wrong.returncode == 2
    assert wrong.stderr.count("\n") == 1
    assert "invalid partition specified: nowhere" in wrong.stderr
    misspelt = submit(cluster, runs, "--dry-run", *FIT, "--model.anzatz", "x")
    assert misspelt.returncode == 2
    assert "anzatz" in misspelt.stderr


@pytest.fixture(scope="module")
def ended(cluster: OneHostCluster, runs: Path) -> dict[str, dict[str, str]]:
    """Three launches that cannot work, at the same time."""
    two = ["--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=1"]
    python = f"source {runs}/env.sh; {{}} python -m nnqs_lightning fit {' '.join(FIT)}"
    commands = {
        "mismatch": ["--wrap", python.format("srun") + " --trainer.num_nodes 2 --trainer.devices 2"],
        "nosrun": ["--wrap", python.format("") + " --trainer.num_nodes 2 --trainer.devices 1"],
        "noaddress": ["slurm/cpu.sbatch", *FIT],
    }
    jobs = {
        name: cluster.submit(
            *two, f"--job-name={name}", f"--output={runs}/{name}.log", *command,
            NNQS_ENV=f"{runs}/env.sh", MASTER_ADDR="no-such-node.invalid",
        )
        for name, command in commands.items()
    }  # fmt: skip
    cluster.wait_until(lambda: all(cluster.is_over(job) for job in jobs.values()), 120)
    return {name: cluster.job(job) for name, job in jobs.items()}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mismatch", "trainer.devices is 2 on 2 node(s), srun has started 2 tasks: set trainer.devices to 1"),
        ("nosrun", "started without srun in a SLURM job of 2 tasks"),
        ("noaddress", "MASTER_ADDR is no-such-node.invalid, which"),
    ],
)
def test_a_launch_that_cannot_work_ends_with_a_line_and_is_not_repeated(
    ended: dict[str, dict[str, str]], runs: Path, name: str, message: str
) -> None:
    log = (runs / f"{name}.log").read_text()
    assert f"error: {message}" in log
    assert "Traceback" not in log
    assert (ended[name]["JobState"], ended[name]["ExitCode"], ended[name]["Restarts"]) == ("FAILED", "2:0", "0")
    minutes, seconds = ended[name]["RunTime"].split(":")[1:]
    assert 60 * int(minutes) + int(seconds) < 60
