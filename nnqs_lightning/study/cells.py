"""Running cells: one after the other or in parallel processes, each kept in a file of its own once it is finished."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nnqs_lightning.study.design import Cell

Result = dict[str, Any]
"""What one cell leaves: its entries, seeds, configuration and figures; or ``failure`` in place of the figures."""

FAILURES = (ValueError, RuntimeError, ArithmeticError)
"""What a cell may die of (UserError and the errors of linear algebra among them) without ending the study."""


def cell_path(folder: str | Path, cell: Cell) -> Path:
    """Where the result of a cell is kept."""
    return Path(folder) / "cells" / f"{cell.key}.json"


def finished(folder: str | Path, cells: list[Cell]) -> list[tuple[Cell, Result]]:
    """The cells that have a result; those that failed are among them."""
    kept = [(cell, cell_path(folder, cell)) for cell in cells]
    return [(cell, json.loads(path.read_text(encoding="utf-8"))) for cell, path in kept if path.is_file()]


def pending(folder: str | Path, cells: list[Cell]) -> list[Cell]:
    """The cells without figures: not run yet, or failed."""
    done = {cell.key for cell, result in finished(folder, cells) if "failure" not in result}
    return [cell for cell in cells if cell.key not in done]


def run_cells(folder: str | Path, cells: list[Cell], jobs: int) -> Iterator[tuple[Cell, Result]]:
    """Run cells and keep their results; yields them as they finish.

    Args:
        folder: of the study.
        cells: what to run.
        jobs: parallel processes of one thread each; 1 runs everything in this process.
    """
    if jobs == 1:
        yield from ((cell, run_and_keep(folder, cell)) for cell in cells)
        return
    # Not fork: threads of torch and numba do not survive it.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_one_thread) as pool:
        futures = {pool.submit(run_and_keep, folder, cell): cell for cell in cells}
        for future in as_completed(futures):
            yield futures[future], future.result()


def run_and_keep(folder: str | Path, cell: Cell) -> Result:
    """Run one cell and write its result beside the others, in one piece."""
    from nnqs_lightning.study.measure import measure

    try:
        figures = measure(cell)
    except FAILURES as error:
        figures = {"failure": f"{type(error).__name__}: {' '.join(str(error).split())}"}
    result = {**asdict(cell), "key": cell.key, **figures}
    path = cell_path(folder, cell)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(json.dumps(result) + "\n", encoding="utf-8")
    temporary.replace(path)
    return result


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)
