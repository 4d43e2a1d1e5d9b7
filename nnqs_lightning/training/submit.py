"""``python -m nnqs_lightning submit``: writes a batch script, checks it, hands it to sbatch.

Imports neither torch nor Lightning: it runs on login nodes, where every second and every thread is looked at.
"""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from nnqs_lightning.errors import UserError
from nnqs_lightning.training.checkpoint_store import CheckpointStore

DEFAULT_LEAD = 120
"""Seconds between the warning and the time limit; SLURM itself is only precise to a minute."""

_UNDETECTED_NAMES = ("bash", "interactive")
"""Job names by which Lightning takes a job for an interactive shell; every task would believe to be rank 0."""


@dataclass(frozen=True)
class Resources:
    """What the header of a batch script asks for."""

    job_name: str
    nodes: int
    tasks_per_node: int
    gpus_per_node: int
    cpus_per_task: int
    time: str
    lead: int
    log: str
    array: str | None = None
    after: str | None = None
    other: tuple[str, ...] = ()
    """Further sbatch options, as they are."""

    def header(self) -> str:
        """The ``#SBATCH`` lines."""
        options = [
            f"--job-name={self.job_name}",
            f"--nodes={self.nodes}",
            f"--ntasks-per-node={self.tasks_per_node}",
            *([f"--gpus-per-node={self.gpus_per_node}"] if self.gpus_per_node else []),
            f"--cpus-per-task={self.cpus_per_task}",
            f"--time={self.time}",
            *([f"--array={self.array}"] if self.array else []),
            *([f"--dependency=afterany:{self.after}"] if self.after else []),
            f"--signal=SIGUSR1@{self.lead}",
            "--requeue",
            "--open-mode=append",
            f"--output={self.log}",
            *self.other,
        ]
        return "".join(f"#SBATCH {option}\n" for option in options)


def script(resources: Resources, settings: dict[str, str], defaults: Sequence[str], comment: str = "") -> str:
    """A whole batch script.

    Args:
        resources: its header.
        settings: environment variables set at its beginning.
        defaults: arguments of ``fit`` before those on the command line of sbatch.
        comment: lines below the first.
    """
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in settings.items())
    body = (files("nnqs_lightning.training") / "job_body.sh").read_text(encoding="utf-8")
    return f"#!/usr/bin/env bash\n{comment}{resources.header()}\n{exports}defaults=({shlex.join(defaults)})\n\n{body}"


def main(arguments: Sequence[str]) -> None:
    """Entry of the subcommand; ``arguments`` are those after ``submit``."""
    _submit(*_parser().parse_known_args(list(arguments)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m nnqs_lightning submit",
        description="Submit a fit to SLURM. Arguments not listed here (--config ...) are those of fit.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--nodes", type=int, default=1, help="nodes (default: 1)")
    add("--gpus-per-node", type=int, default=0, help="GPUs, and so ranks, of a node (default: 0, CPUs only)")
    add("--tasks-per-node", type=int, help="ranks of a node where there are no GPUs (default: 1)")
    add("--cpus-per-task", type=int, default=4, help="cores, and so threads, of a rank (default: 4)")
    add("--time", default="24:00:00", help="time limit of one start (default: 24:00:00)")
    add("--partition", help="where the job goes")
    add("--account", help="who pays")
    add("--job-name", default="nnqs", help="name in the queue and of the run folder (default: nnqs)")
    add("--run-dir", type=Path, help="run folder, shared by all nodes (default: runs/JOB-NAME)")
    add("--lead", type=int, default=DEFAULT_LEAD, help="seconds before the limit at which to save (default: 120)")
    add("--array", help="tasks of a sweep, as in 1-12%%4: a run folder and a seed each, or a line of --sweep each")
    add("--sweep", type=Path, help="file whose n-th line holds the further arguments of task n")
    add("--after", metavar="JOB", help="start when this job has ended, however it ended")
    add("--env", type=Path, help="file with the site's modules, container and network (default: slurm/env.sh)")
    add("--max-requeues", type=int, default=100, help="restarts after which to give up (default: 100)")
    add("--sbatch", action="append", default=[], metavar="OPTION", help="one more sbatch option; may be repeated")
    add("--skip-config-check", action="store_true", help="do not parse the configuration before submitting")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--dry-run", action="store_true", help="print the script and submit nothing")
    what.add_argument("--test-only", action="store_true", help="let sbatch check the script and submit nothing")
    return parser


def _submit(options: argparse.Namespace, fit_arguments: list[str]) -> None:
    run_dir = (options.run_dir or Path("runs") / options.job_name).absolute()
    resources = _resources(options, run_dir)
    _check(options, resources, fit_arguments, run_dir)
    if not options.skip_config_check:
        _check_config(fit_arguments)
    text = script(resources, _settings(options, run_dir), [*_accelerator(options), *fit_arguments])
    if options.dry_run:
        print(text, end="")
        print(f"\n# Would be submitted from {Path.cwd()}. {_plan(resources, run_dir)}")
        return
    if shutil.which("sbatch") is None:
        raise UserError("sbatch is not on PATH: submit from a login node, or look at the script with --dry-run")
    if options.test_only:
        print(_sbatch(["--test-only"], text).strip() or "sbatch accepts the script")
        return
    run_dir.mkdir(parents=True, exist_ok=True)
    job = _sbatch(["--parsable"], text).strip().split(";")[0]
    (run_dir / f"job-{job}.sbatch").write_text(text, encoding="utf-8")
    log = resources.log.replace("%j", job).replace("%A", job)
    print(f"job {job} submitted. {_plan(resources, run_dir)}\nfollow it with: tail -F {log}")


def _resources(options: argparse.Namespace, run_dir: Path) -> Resources:
    chosen = {"partition": options.partition, "account": options.account}
    return Resources(
        job_name=options.job_name,
        nodes=options.nodes,
        tasks_per_node=options.gpus_per_node or options.tasks_per_node or 1,
        gpus_per_node=options.gpus_per_node,
        cpus_per_task=options.cpus_per_task,
        time=options.time,
        lead=options.lead,
        log=str(run_dir / ("slurm-%A_%a.log" if options.array else "slurm-%j.log")),
        array=options.array,
        after=options.after,
        other=(*(f"--{name}={value}" for name, value in chosen.items() if value), *options.sbatch),
    )


def _settings(options: argparse.Namespace, run_dir: Path) -> dict[str, str]:
    settings = {"NNQS_RUN_DIR": str(run_dir), "NNQS_MAX_REQUEUES": str(options.max_requeues)}
    if options.env:
        settings["NNQS_ENV"] = str(options.env.absolute())
    if options.sweep:
        settings["NNQS_SWEEP"] = str(options.sweep.absolute())
    return settings


def _accelerator(options: argparse.Namespace) -> list[str]:
    return ["--trainer.accelerator", "cuda" if options.gpus_per_node else "cpu"]


def _check(options: argparse.Namespace, resources: Resources, fit_arguments: list[str], run_dir: Path) -> None:
    """Refuse what would fail, or hang, hours later."""
    for name in ("nodes", "tasks_per_node", "cpus_per_task"):
        if getattr(resources, name) < 1:
            raise UserError(f"--{name.replace('_', '-')} is {getattr(resources, name)}, expected at least 1")
    if resources.job_name in _UNDETECTED_NAMES or not re.fullmatch(r"[\w.+-]+", resources.job_name):
        raise UserError(
            f"--job-name is {resources.job_name!r}: choose letters, digits and ._+- and neither bash nor interactive, "
            "which Lightning takes for a shell"
        )
    if options.tasks_per_node and options.gpus_per_node and options.tasks_per_node != options.gpus_per_node:
        raise UserError(
            f"--tasks-per-node is {options.tasks_per_node}, --gpus-per-node {options.gpus_per_node}: a rank works on "
            "one GPU, leave --tasks-per-node out"
        )
    for key, ours in (("devices", resources.tasks_per_node), ("num_nodes", resources.nodes)):
        theirs = _value_of(f"--trainer.{key}", fit_arguments)
        if theirs is not None and theirs != str(ours):
            raise UserError(f"--trainer.{key} is {theirs}, the job has {ours}: leave it out, the script sets it")
    if options.sweep and not (options.array and options.sweep.is_file()):
        raise UserError(f"--sweep {options.sweep} needs --array, and a file with one line of arguments per task")
    for file in (options.env,):
        if file and not file.is_file():
            raise UserError(f"--env {file} does not exist")
    _check_lead(resources, run_dir)


def _check_lead(resources: Resources, run_dir: Path) -> None:
    """The signal must come a step and a save before the limit; earlier checkpoints know how long these take."""
    limit = _seconds(resources.time)
    if resources.lead < 60 or resources.lead >= limit:
        raise UserError(
            f"--lead is {resources.lead} s with --time {resources.time}: expected at least 60, as SLURM counts in "
            "minutes, and less than the limit"
        )
    manifests = [manifest for _, manifest in CheckpointStore(run_dir).newest_first()]
    needed = max((manifest.step_seconds + 2 * manifest.save_seconds for manifest in manifests), default=0.0)
    if resources.lead < needed + 30:
        raise UserError(
            f"--lead is {resources.lead} s, but a step and a save have taken up to {needed:.0f} s in {run_dir}: "
            f"set it to {int(needed) + 60} or more"
        )


def _check_config(fit_arguments: list[str]) -> None:
    """Parse the configuration as ``fit`` will, so that a misspelt key is not found after a night in the queue."""
    command = [sys.executable, "-m", "nnqs_lightning", "fit", *fit_arguments, "--print_config"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        lines = [line for line in run.stderr.splitlines() if line.strip()] or ["no message"]
        raise UserError(f"fit would refuse its arguments: {lines[-1].removeprefix('error: ')}")


def _sbatch(options: list[str], text: str) -> str:
    run = subprocess.run(["sbatch", *options], input=text, capture_output=True, text=True, check=False)
    if run.returncode:
        reason = " ".join(run.stderr.replace("sbatch: error: ", "").split())
        raise UserError(f"sbatch refuses the job: {reason}. Change the option it names, or add one with --sbatch")
    return run.stdout or run.stderr


def _plan(resources: Resources, run_dir: Path) -> str:
    ranks = resources.nodes * resources.tasks_per_node
    kind = "GPU" if resources.gpus_per_node else "CPU"
    entries = CheckpointStore(run_dir).newest_first()
    start = f"continues at step {entries[0][1].step}" if entries else "starts at step 0"
    tasks = f", array {resources.array}" if resources.array else ""
    return (
        f"{ranks} {kind} rank(s) on {resources.nodes} node(s){tasks}, {resources.time} at a time, saved "
        f"{resources.lead} s before the limit and requeued; {start} in {run_dir}"
    )


def _value_of(option: str, arguments: list[str]) -> str | None:
    """Last value of ``option`` in ``--option value`` or ``--option=value``."""
    value = None
    for index, argument in enumerate(arguments):
        if argument == option and index + 1 < len(arguments):
            value = arguments[index + 1]
        elif argument.startswith(f"{option}="):
            value = argument.partition("=")[2]
    return value


def _seconds(time: str) -> int:
    """sbatch's formats: minutes, minutes:seconds, hours:minutes:seconds, days-hours[:minutes[:seconds]]."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", time)
    if match is None:
        raise UserError(f"--time is {time}, expected hours:minutes:seconds or days-hours, as in 4:00:00 or 2-00")
    days, first, second, third = (int(part) if part is not None else None for part in match.groups())
    assert first is not None
    if days is not None:
        return 86400 * days + 3600 * first + 60 * (second or 0) + (third or 0)
    if third is not None:
        return 3600 * first + 60 * (second or 0) + third
    return 60 * first + (second or 0)
