"""The tidy table of a study, one row for each cell, and blocks of it for the statistics."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nnqs_lightning.study.cells import Result
from nnqs_lightning.study.design import Cell, Study

Array = NDArray[np.float64]
Row = dict[str, Any]

FIGURES = (
    "error_mha",
    "error_bar_mha",
    "energy",
    "variance",
    "reference",
    "reference_method",
    "steps",
    "steps_to_accuracy",
    "parameters",
    "cpu_s",
    "failure",
)

Figure = Callable[[Result], float]
"""Reads an error in millihartree off the result of a cell."""

TARGET_FIGURES: dict[str, Callable[[Result], Any]] = {
    "zero_shot_mha": lambda target: target["zero_shot_mha"],
    "zero_shot_error_bar_mha": lambda target: target["zero_shot_error_bar_mha"],
    "fresh_start_mha": lambda target: target["fresh_start_mha"],
    "moved_mha": lambda target: target["moved"]["error_mha"],
    "moved_error_bar_mha": lambda target: target["moved"]["error_bar_mha"],
    "fresh_mha": lambda target: target["fresh"]["error_mha"],
    "fresh_error_bar_mha": lambda target: target["fresh"]["error_bar_mha"],
    "steps_saved": lambda target: target["steps_saved"],
}
"""What the table holds of each target of a cell."""

FLOOR_MHA = 1e-3
"""Errors below a microhartree count as one: there rounding and the reference decide, not the scheme."""


def rows(results: list[tuple[Cell, Result]]) -> list[Row]:
    """One row for each cell: its entries, seeds, figures and key; empty where a figure is missing."""
    return [
        {
            **cell.entries,
            "seed": cell.seed,
            "rng_seed": cell.rng_seed,
            **{name: result.get(name) for name in FIGURES},
            **_target_columns(result),
            "key": cell.key,
        }
        for cell, result in results
    ]


def _target_columns(result: Result) -> Row:
    return {
        f"{target}/{name}": of(figures)
        for target, figures in result.get("targets", {}).items()
        if "moved" in figures
        for name, of in TARGET_FIGURES.items()
    }


def final_error(result: Result) -> float:
    """Error after the last step."""
    return result["error_mha"]


def target_figure(target: str, name: str) -> Figure:
    """One of :data:`TARGET_FIGURES` of one target."""
    return lambda result: TARGET_FIGURES[name](result["targets"][target])


def write(folder: str | Path, table: list[Row]) -> list[Path]:
    """Write ``table.csv``, and ``table.parquet`` where pyarrow is installed; whole or not at all."""
    columns = list(dict.fromkeys(column for row in table for column in row))
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    path = Path(folder) / "table.csv"
    _replace(path, buffer.getvalue().encode())
    if not find_spec("pyarrow"):
        return [path]
    import pyarrow
    from pyarrow import parquet

    sink = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist([{c: row.get(c) for c in columns} for row in table]), sink)
    _replace(path.with_suffix(".parquet"), sink.getvalue())
    return [path, path.with_suffix(".parquet")]


def _replace(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_bytes(content)
    temporary.replace(path)


def log_errors(
    study: Study,
    results: list[tuple[Cell, Result]],
    figure: Figure = final_error,
    only: Mapping[str, str] = MappingProxyType({}),
) -> Array:
    """log10 of the errors in millihartree, [A, S, R] over (entry of the compared axis, other axes, seed).

    Seeds of which a cell is missing are left out. A cell that failed counts with the largest error of its stratum, so
    that failing never pays.

    Args:
        study: the plan.
        results: its finished cells.
        figure: which error.
        only: axes restricted to one entry.
    """
    found = {(frozenset(cell.entries.items()), cell.seed): result for cell, result in results}
    others = {axis: [only[axis]] if axis in only else list(study.axes[axis]) for axis in study.axes}
    del others[study.compare]
    strata = [dict(zip(others, names, strict=True)) for names in product(*others.values())]

    def log_error(entry: str, stratum: dict[str, Any], seed: int) -> float:
        result = found.get((frozenset({**stratum, study.compare: entry}.items()), seed))
        if result is None:
            return np.nan
        return np.inf if "failure" in result else float(np.log10(max(figure(result), FLOOR_MHA)))

    values = np.array(
        [
            [[log_error(entry, stratum, seed) for seed in study.seed_numbers] for stratum in strata]
            for entry in study.axes[study.compare]
        ]
    )
    values = values[:, :, ~np.isnan(values).any(axis=(0, 1))]
    worst = np.where(np.isfinite(values), values, -np.inf).max(axis=(0, 2), initial=-np.inf, keepdims=True)
    return np.where(np.isinf(values), worst, values)
