"""``python -m nnqs_lightning study``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from jsonargparse import ArgumentError, ArgumentParser
from rich.console import Console

from nnqs_lightning import signals
from nnqs_lightning.errors import UserError
from nnqs_lightning.study.cells import Result, finished, pending, run_cells
from nnqs_lightning.study.design import Shard, Study


def parser() -> ArgumentParser:
    """Arguments of the command; the study itself comes from ``--config`` and may be overridden key by key."""
    arguments = ArgumentParser(
        prog="nnqs-lightning study",
        description="Run the cells of a study that are missing, then write its table, its statistics and its plots.",
        exit_on_error=False,
    )
    arguments.add_argument("--config", action="config", help="File of the study; may be given several times.")
    arguments.add_argument("--jobs", type=int, default=1, help="Parallel processes of one thread each.")
    arguments.add_argument(
        "--shard",
        type=str | None,
        help="i/n: run every n-th cell only, from the i-th on; null: the SLURM array's share.",
    )
    arguments.add_class_arguments(Study)
    return arguments


def main(args: Sequence[str]) -> None:
    """Run one command; bad input ends with one line and status 2."""
    try:
        parsed = parser().parse_args(list(args))
        shard = Shard.parse(parsed.pop("shard"))
        jobs = parsed.pop("jobs")
        parsed.pop("config")
        run(Study(**parsed.as_dict()), shard, jobs, Console(soft_wrap=True, highlight=False))
    except (UserError, ArgumentError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)


def run(study: Study, shard: Shard, jobs: int, console: Console) -> None:
    """Run this share of the cells that are missing; whoever finds all of them finished writes the report."""
    if jobs < 1:
        raise UserError(f"--jobs is {jobs}, expected at least 1")
    check(study)
    missing = pending(study.folder, shard.of(study.cells()))
    console.print(f"{len(study.cells())} cells, {len(missing)} to run in this share; results in {study.folder}")
    for number, (cell, result) in enumerate(run_cells(study.folder, missing, jobs), start=1):
        console.print(f"{number}/{len(missing)}  {cell.label}: {summary(result)}")
        received = signals.requested()
        if received and number < len(missing):
            console.print("stopping between two cells; the same command goes on from here")
            sys.exit(signals.EXIT_CODES[received])
    conclude(study, console)


def check(study: Study) -> None:
    """Parse one cell for each entry of each axis, so that a mistake in the last one is not found hours later."""
    from nnqs_lightning.study.training import parse

    seen: set[tuple[str, str]] = set()
    for cell in study.cells():
        new = set(cell.entries.items()) - seen
        if new:
            seen |= new
            for config in [cell.config, *cell.targets.values()]:
                parse(config)


def conclude(study: Study, console: Console) -> None:
    """Write the table of what is there, and the report once nothing is missing."""
    from nnqs_lightning.study import report, table

    cells = study.cells()
    results = finished(study.folder, cells)
    written = table.write(study.folder, table.rows(results)) if results else []
    if len(results) < len(cells):
        console.print(f"{len(cells) - len(results)} cells are still missing: the report waits for them")
    elif study.seeds > 1:
        written += report.write(study, results)
    for path in written:
        console.print(f"wrote {path}")


def summary(result: Result) -> str:
    """One result in one line."""
    if "failure" in result:
        return f"failed: {result['failure']}"
    return f"{result['error_mha']:.3f} mHa after {result['steps']} steps, {result['cpu_s']:.1f} s"
