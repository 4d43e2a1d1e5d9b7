"""What is measured in one cell."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from nnqs_lightning.ansatz import TransformerAnsatz
from nnqs_lightning.ansatz.loading import load_matching
from nnqs_lightning.errors import UserError
from nnqs_lightning.study.design import Cell
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
        figures["targets"] = {name: _move(run, config, cell.rng_seed) for name, config in cell.targets.items()}
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
        "error_bar_mha": 1e3 * final["error_bar"],
        "reference": reference,
        "reference_method": method,
        "trace_mha": [round(error, 6) for error in trace],
        "steps": len(trace),
        "steps_to_accuracy": first_below(trace, CHEMICAL_ACCURACY_MHA),
        "parameters": sum(p.numel() for p in run.module.ansatz.parameters()),
        "cpu_s": round(run.recorder.cpu_s, 3),
        "versions": {package: version(package) for package in ("nnqs_lightning", "torch", "lightning")},
    }


def _move(trained: Run, config: dict[str, Any], rng_seed: int) -> dict[str, Any]:
    """Load what fits into another system's wave function, evaluate, train on; and train one from its own start.

    The loaded parameters take the place of the supervised start, which the other one has.
    """
    moved, fresh = prepare(config, rng_seed), prepare(config, rng_seed)
    ansatz = moved.module.ansatz
    if not isinstance(ansatz, TransformerAnsatz):
        raise UserError(f"targets need a TransformerAnsatz, {type(ansatz).__name__} cannot start from another system")
    report = load_matching(ansatz, trained.module.ansatz.state_dict())
    moved.module.pretraining = None
    zero_shot = moved.energy()
    moved.fit()
    fresh.fit()
    figures = {"moved": _figures(moved), "fresh": _figures(fresh)}
    return {
        "zero_shot_mha": 1e3 * (zero_shot["mean"] - _reference(moved)[1]),
        "zero_shot_error_bar_mha": 1e3 * zero_shot["error_bar"],
        "fresh_start_mha": figures["fresh"]["trace_mha"][0],
        "steps_saved": steps_saved(figures["moved"]["trace_mha"], figures["fresh"]["trace_mha"]),
        "loaded": len(report.loaded),
        "resized": report.resized,
        "skipped": report.skipped,
        **figures,
    }


def steps_saved(moved: list[float], fresh: list[float]) -> int | None:
    """How many of its steps a fresh run could have spared: all but those after which the moved one is as good.

    Entry k of a trace is the error after k steps. None where the moved run never gets there.
    """
    there = [step for step, error in enumerate(moved) if error <= fresh[-1]]
    return len(fresh) - 1 - there[0] if there else None


def _reference(run: Run) -> tuple[str, float]:
    best = run.module.system.reference_energies().best()
    if best is None:
        raise UserError(
            f"{run.module.system.name} has no reference energy, and a study measures errors: change its axis"
        )
    return best


def first_below(trace: list[float], threshold: float) -> int | None:
    """Steps after which a trace stays at or below a threshold; None if it never does.

    Entry k of a trace is the error after k steps.
    """
    above = [step for step, error in enumerate(trace) if not error <= threshold]
    start = above[-1] + 1 if above else 0
    return start if start < len(trace) else None
