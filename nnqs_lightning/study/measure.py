"""What is measured in one cell."""

from __future__ import annotations

import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from nnqs_lightning.errors import UserError
from nnqs_lightning.study.design import Cell, merge
from nnqs_lightning.study.training import Run, prepare

CHEMICAL_ACCURACY_MHA = 1.6


def measure(cell: Cell) -> dict[str, Any]:
    """Train a cell, evaluate it and move it on to its targets.

    Raises:
        UserError: no reference energy, or a configuration that does not fit.
    """
    run = prepare(cell.config, cell.rng_seed)
    run.fit()
    figures = _figures(run)
    figures["inspection"] = run.inspection()
    if cell.targets:
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = str(Path(folder) / "trained.ckpt")
            run.save(checkpoint)
            figures["targets"] = {
                name: _transfer(config, cell.rng_seed, checkpoint) for name, config in cell.targets.items()
            }
    return figures


def _figures(run: Run) -> dict[str, Any]:
    """Energies of a trained run; errors in millihartree above the reference."""
    method, reference = _reference(run)
    final = run.energy()
    trace = [1e3 * (energy - reference) for energy in run.recorder.energies]
    return {
        "energy": final["mean"],
        "variance": final["variance"],
        "error_mha": 1e3 * (final["mean"] - reference),
        "reference": reference,
        "reference_method": method,
        "trace_mha": [round(error, 6) for error in trace],
        "steps": len(trace),
        "steps_to_accuracy": first_below(trace, CHEMICAL_ACCURACY_MHA),
        "parameters": sum(p.numel() for p in run.module.ansatz.parameters()),
        "cpu_s": round(run.recorder.cpu_s, 3),
        "versions": {package: version(package) for package in ("nnqs_lightning", "torch", "lightning")},
    }


def _transfer(config: dict[str, Any], rng_seed: int, checkpoint: str) -> dict[str, Any]:
    """Load, evaluate at once, train on, and train another one from the start."""
    moved = prepare(merge(config, {"model": {"init_from": checkpoint}}), rng_seed)
    _, reference = _reference(moved)
    zero_shot = moved.energy()
    moved.fit()
    fresh = prepare(config, rng_seed)
    untrained = fresh.energy()
    fresh.fit()
    return {
        "zero_shot_mha": 1e3 * (zero_shot["mean"] - reference),
        "untrained_mha": 1e3 * (untrained["mean"] - reference),
        "moved": _figures(moved),
        "fresh": _figures(fresh),
    }


def _reference(run: Run) -> tuple[str, float]:
    best = run.module.system.reference_energies().best()
    if best is None:
        raise UserError(
            f"{run.module.system.name} has no reference energy, and a study measures errors: change its axis"
        )
    return best


def first_below(trace: list[float], threshold: float) -> int | None:
    """Number of the first step (from 1) from which on a trace stays at or below a threshold; None if it never does."""
    above = [step for step, error in enumerate(trace, start=1) if not error <= threshold]
    start = above[-1] + 1 if above else 1
    return start if start <= len(trace) else None
