"""Whatever SLURM does to a job, it ends with the energies of the uninterrupted run, bit for bit."""

from __future__ import annotations

import csv
import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from one_host_cluster import OneHostCluster

from nnqs_lightning.training.checkpoint_store import CheckpointStore

STEPS, GATE = 40, 22
FIT = [
    "--config", "configs/h2.yaml", "--trainer.accelerator", "cpu", "--trainer.max_steps", str(STEPS),
    "--model.pretraining", "null", "--checkpoint.every_steps", "5",
    "--report.final_draws", "0", "--report.plot", "false",
    "--trainer.callbacks+=gate.Gate", f"--trainer.callbacks.step={GATE}", "--trainer.callbacks.seconds=0.02",
]  # fmt: skip
TWO_NODES = ["--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=1"]


@dataclass
class Story:
    """One job and what happens to it once all its ranks wait at the gate."""

    name: str
    fault: Callable[[OneHostCluster, Story], None]
    options: list[str] = field(default_factory=lambda: list(TWO_NODES))
    script: str = "slurm/cpu.sbatch"
    tasks: tuple[str, ...] = ("",)
    ranks: int = 2
    job: str = ""
    runs: Path = Path()
    struck: bool = False
    struck_at: float = 0.0

    def submit(self, cluster: OneHostCluster, runs: Path) -> None:
        self.runs = runs
        self.job = cluster.submit(
            f"--job-name={self.name}", f"--output={runs}/%x-%j.log", *self.options, self.script, *FIT,
            NNQS_ENV=f"{runs}/env.sh",
        )  # fmt: skip

    def folders(self) -> list[Path]:
        return [self.runs / f"{self.name}-{self.job}{task}" for task in self.tasks]

    def waits(self) -> bool:
        return all((folder / f"rank-{rank}-waits").exists() for folder in self.folders() for rank in range(self.ranks))

    def open(self) -> None:
        for folder in self.folders():
            (folder / "open").touch()

    def log(self) -> str:
        return "".join(path.read_text() for path in sorted(self.runs.glob(f"{self.name}-*.log")))


def nothing(cluster: OneHostCluster, story: Story) -> None:
    story.open()


def send_usr1(cluster: OneHostCluster, story: Story) -> None:
    cluster.run("scancel", "--signal=USR1", story.job)


def cancel(cluster: OneHostCluster, story: Story) -> None:
    cluster.run("scancel", story.job)


def more_urgent_job(cluster: OneHostCluster, story: Story) -> None:
    cluster.submit("--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap", "sleep 3")


def kill_a_rank(cluster: OneHostCluster, story: Story) -> None:
    pid = int((story.folders()[0] / "rank-1-waits").read_text())
    story.open()
    os.kill(pid, signal.SIGKILL)


def lose_the_first_node(cluster: OneHostCluster, story: Story) -> None:
    """Its daemon, the batch script and the rank are gone at once, as when the power fails; the node comes back."""
    daemon, job = cluster.nodes[4], story.job
    cluster.kill_node_daemon(daemon)
    story.open()
    rank = int((story.folders()[0] / "rank-0-waits").read_text())
    for pid in [*processes_of(f"slurmstepd: [{job}.batch]"), parent(rank), rank]:
        os.kill(pid, signal.SIGKILL)
    cluster.wait_until(lambda: cluster.job(job)["JobState"] != "RUNNING", 60)
    cluster.start_node(daemon)


def processes_of(title: str) -> list[int]:
    """The process of that title and its children's children, the deepest first."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "cmdline").read_bytes().decode().startswith(title):
                    found.append(int(entry.name))
            except OSError:
                continue
    return [process for pid in found for process in [*descendants(pid), pid]]


def descendants(pid: int) -> list[int]:
    children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [process for child in children for process in [*descendants(child), child]]


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


ARRAY = ["--array=1-2", "--cpus-per-task=1"]
STORIES = [
    Story("uninterrupted", nothing),
    Story("usr1", send_usr1),
    Story("timelimit", lambda cluster, story: None, [*TWO_NODES, "--time=2", "--signal=SIGUSR1@45"]),
    Story("preempted", more_urgent_job, [*TWO_NODES, "--partition=low"]),
    Story("rankkilled", kill_a_rank),
    Story("nodelost", lose_the_first_node, [*TWO_NODES, "--partition=fragile"]),
    Story("array-uninterrupted", nothing, ARRAY, "slurm/array.sbatch", ("_1", "_2"), ranks=1),
    Story("array-usr1", send_usr1, ARRAY, "slurm/array.sbatch", ("_1", "_2"), ranks=1),
    Story("cancelled", cancel, ["--nodes=1", "--ntasks-per-node=1", "--cpus-per-task=1"], ranks=1),
]


@pytest.fixture(scope="module")
def stories(cluster: OneHostCluster, runs: Path) -> dict[str, Story]:
    """All jobs at once: while one waits to be requeued, others use the cores."""
    for story in STORIES:
        story.submit(cluster, runs)
    deadline = time.monotonic() + 420
    last_seen_alive = time.monotonic()
    while time.monotonic() < deadline:
        for story in STORIES:
            if not story.struck and story.waits():
                story.struck, story.struck_at = True, time.monotonic()
                story.fault(cluster, story)
        if not all(cluster.is_over(story.job) for story in STORIES):
            last_seen_alive = time.monotonic()
        elif time.monotonic() - last_seen_alive > 10:  # a job on its way back into the queue looks ended for a moment
            break
        time.sleep(0.3)
    return {story.name: story for story in STORIES}


def energies(folder: Path) -> list[tuple[int, str]]:
    with (folder / "metrics.csv").open(newline="") as file:
        return [(int(row["step"]), row["energy/mean"]) for row in csv.DictReader(file)]


@pytest.mark.parametrize("name", ["usr1", "timelimit", "preempted", "rankkilled", "nodelost"])
def test_two_nodes_end_with_the_uninterrupted_energies(
    cluster: OneHostCluster, stories: dict[str, Story], name: str
) -> None:
    story, whole = stories[name], stories["uninterrupted"]
    assert cluster.job(whole.job)["Restarts"] == "0", whole.log()
    fields = cluster.job(story.job)
    assert (fields["JobState"], fields["ExitCode"]) == ("COMPLETED", "0:0"), story.log()
    assert int(fields["Restarts"]) >= 1, story.log()
    expected = energies(whole.folders()[0])
    assert [step for step, _ in expected] == list(range(STEPS))
    assert energies(story.folders()[0]) == expected
    assert json.loads((story.folders()[0] / "summary.json").read_text())["steps"] == STEPS


def test_every_task_of_an_array_is_requeued_and_ends_alike(cluster: OneHostCluster, stories: dict[str, Story]) -> None:
    story, whole = stories["array-usr1"], stories["array-uninterrupted"]
    for ours, theirs in zip(story.folders(), whole.folders(), strict=True):
        assert energies(ours) == energies(theirs), story.log()
    assert story.log().count("requeued (1 of at most 100)") == 2
    assert energies(story.folders()[0]) != energies(story.folders()[1])


def test_a_cancelled_job_saves_stays_away_and_is_no_success(cluster: OneHostCluster, stories: dict[str, Story]) -> None:
    story = stories["cancelled"]
    fields = cluster.job(story.job)
    assert (fields["JobState"], fields["Restarts"]) == ("CANCELLED", "0")
    manifest = CheckpointStore(story.folders()[0]).newest_first()[0][1]
    assert (manifest.step, manifest.reason) == (GATE + 1, "stopped by SIGTERM")


def test_the_time_from_signal_to_safety_is_printed(stories: dict[str, Story]) -> None:
    assert f"step {GATE + 1}: stopped by SIGUSR1, safe to start again" in stories["usr1"].log()
    assert "s after the signal" in stories["usr1"].log()
