"""What a finished run leaves behind: a table, summary.json and a convergence plot."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from rich.console import Console
from rich.table import Table

from nnqs_lightning import distributed
from nnqs_lightning.chem import ReferenceEnergies
from nnqs_lightning.training.metrics import EnergyMetrics
from nnqs_lightning.training.module import NNQSModule
from nnqs_lightning.training.preemption import cut_short

LABELS = {"hf": "HF", "mp2": "MP2", "cisd": "CISD", "ccsd": "CCSD", "ccsd_t": "CCSD(T)", "fci": "FCI"}
CHEMICAL_ACCURACY = 1.6e-3
"""Hartree."""


class RunReport(Callback):
    """Keeps the history of a run and reports it at the end of ``fit`` and ``test``.

    ``time/cpu`` in the log is the CPU time of this process in seconds since the run was set up, the supervised start
    included, imports, integrals and reference energies not.

    Args:
        final_draws: Evaluation samples behind the energy reported at the end of ``fit``; 0 reports the last
            training step's energy instead.
        plot: Whether to draw ``convergence.png`` in the run folder.
    """

    def __init__(self, final_draws: int = 1, plot: bool = True) -> None:
        self.final_draws = final_draws
        self.plot = plot
        self.history: dict[str, list[float]] = {}
        self.wall_s = 0.0
        self.cpu_s = 0.0

    def state_dict(self) -> dict[str, Any]:
        return {"history": self.history, "wall_s": self._elapsed()[0], "cpu_s": self._elapsed()[1]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.history = state_dict["history"]
        self.wall_s, self.cpu_s = state_dict["wall_s"], state_dict["cpu_s"]

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._wall_start, self._cpu_start = time.monotonic(), time.process_time()

    def _elapsed(self) -> tuple[float, float]:
        """Wall and CPU seconds of this run, those before a resume included."""
        if not hasattr(self, "_wall_start"):
            return self.wall_s, self.cpu_s
        wall = self.wall_s + time.monotonic() - self._wall_start
        return wall, self.cpu_s + time.process_time() - self._cpu_start

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        figures: dict[str, Any] = {
            "step": trainer.global_step,
            "energy": trainer.callback_metrics["energy/mean"],
            "variance": trainer.callback_metrics["energy/variance"],
            "unique": trainer.callback_metrics.get("sampling/unique", float("nan")),
        }
        for key, value in figures.items():
            self.history.setdefault(key, []).append(float(value))
        pl_module.log("time/cpu", self._elapsed()[1], on_step=True, on_epoch=False, batch_size=1)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, NNQSModule)
        if not self.history or cut_short(trainer):
            return
        result = self._final_energy(trainer, pl_module)
        if trainer.is_global_zero:
            references = pl_module.system.reference_energies()
            summary = self._summary(trainer, pl_module, references, result)
            folder = Path(trainer.default_root_dir)
            folder.mkdir(parents=True, exist_ok=True)
            _write_atomically(folder / "summary.json", json.dumps(summary, indent=2) + "\n")
            if self.plot:
                plot_convergence(folder / "convergence.png", pl_module.system.name, self.history, references)
            print_energies(pl_module.system.name, references, _rows(result), self._footer(summary))

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, NNQSModule)
        metrics = trainer.callback_metrics
        if not trainer.is_global_zero:
            return
        rows = []
        for stage, label in {"test": "this wave function", "exact": "… summed over the sector"}.items():
            if f"{stage}/mean" in metrics:
                bar = None if stage == "exact" else float(metrics[f"{stage}/error_bar"])
                rows.append((label, float(metrics[f"{stage}/mean"]), bar))
        references = pl_module.system.reference_energies()
        print_energies(pl_module.system.name, references, rows, f"{pl_module.hamiltonian.sector}")

    def _final_energy(self, trainer: Trainer, module: NNQSModule) -> dict[str, float]:
        """Energy and error bar of the final parameters from fresh samples; collective."""
        if not self.final_draws:
            names = {"mean": "energy/mean", "error_bar": "energy/error_bar", "unique": "sampling/unique"}
            return {key: float(trainer.callback_metrics[name]) for key, name in names.items()}
        metric = EnergyMetrics()
        stream = trainer.datamodule.evaluation_stream()  # type: ignore[attr-defined]
        for index in range(self.final_draws):
            batch = stream.draw(index)
            metric.update(module.validation_energy.evaluate(module.hamiltonian, module.ansatz, batch), batch)
        return {key: float(value) for key, value in metric.compute().items()}

    def _summary(
        self, trainer: Trainer, module: NNQSModule, references: ReferenceEnergies, result: dict[str, float]
    ) -> dict[str, Any]:
        best = references.best()
        wall_s, cpu_s = self._elapsed()
        return {
            "system": module.system.name,
            "energy": result["mean"],
            "error_bar": result["error_bar"],
            **{f"e_{key}": getattr(references, key) for key in LABELS},
            "reference": best[0] if best else None,
            "error_mha": 1e3 * (result["mean"] - best[1]) if best else None,
            "last_training_energy": self.history["energy"][-1],
            "steps": trainer.global_step,
            "wall_s": round(wall_s, 2),
            "cpu_s": round(cpu_s, 2),
            "unique": int(result["unique"]),
            "parameters": sum(p.numel() for p in module.ansatz.parameters()),
            "seed": trainer.datamodule.seed,  # type: ignore[attr-defined]
            "ranks": distributed.world_size(),
            "versions": _versions(),
        }

    def _footer(self, summary: dict[str, Any]) -> str:
        return (
            f"{summary['steps']} steps, {summary['unique']:,} unique determinants, "
            f"{summary['parameters']:,} parameters, {summary['wall_s']:.0f} s wall, {summary['cpu_s']:.0f} s CPU"
        )


def _rows(result: dict[str, float]) -> list[tuple[str, float, float | None]]:
    return [("this wave function", result["mean"], result["error_bar"])]


def print_energies(
    name: str,
    references: ReferenceEnergies,
    rows: list[tuple[str, float, float | None]],
    caption: str,
    console: Console | None = None,
    remarks: Sequence[str] = (),
) -> None:
    """Table of reference energies and ours: energy in hartree, error bar and distance to the best reference in mHa.

    ``remarks``, one for each of our rows, say whether it is variational.
    """
    best = references.best()
    table = Table(title=f"Energy of {name}", caption=caption)
    for heading in ("method", "energy / Ha", "± / mHa", "error / mHa"):
        table.add_column(heading, justify="left" if heading == "method" else "right", no_wrap=True)
    if remarks:
        table.add_column("variational")

    def add(label: str, energy: float, bar: float | None, style: str | None = None, *remark: str) -> None:
        error = "" if best is None else f"{1e3 * (energy - best[1]):+.3f}"
        table.add_row(label, f"{energy:.6f}", "" if bar is None else f"{1e3 * bar:.3f}", error, *remark, style=style)

    for key, label in LABELS.items():
        energy = getattr(references, key)
        if energy is None:
            table.add_row(label, "—", "", "", style="dim")
        else:
            add(label, energy, None)
    table.add_section()
    for (label, energy, bar), remark in zip(rows, remarks or [""] * len(rows), strict=True):
        reached = best is not None and abs(energy - best[1]) < CHEMICAL_ACCURACY
        add(label, energy, bar, "bold green" if reached else "bold", *([remark] if remarks else []))
    (console or Console()).print(table)


def plot_convergence(path: Path, name: str, history: dict[str, list[float]], references: ReferenceEnergies) -> None:
    """Error against the best reference (or the energy) and the variance over the steps, as a PNG."""
    from matplotlib.figure import Figure

    best = references.best()
    figure = Figure(figsize=(7, 5), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[2, 1])
    if best:
        top.semilogy(history["step"], [1e3 * abs(e - best[1]) for e in history["energy"]], label="this wave function")
        top.axhline(1e3 * CHEMICAL_ACCURACY, color="grey", linestyle=":", label="chemical accuracy")
        for key in ("ccsd", "ccsd_t"):
            energy = getattr(references, key)
            if energy is not None and key != best[0] and abs(energy - best[1]) > 1e-9:
                style = "--" if key == "ccsd" else "-."
                top.axhline(1e3 * abs(energy - best[1]), color="tab:red", linestyle=style, label=LABELS[key])
        top.set_ylabel(f"|E − {LABELS[best[0]]}| / mHa")
        top.legend()
    else:
        top.plot(history["step"], history["energy"])
        top.set_ylabel("energy / Ha")
    top.set_title(name)
    bottom.semilogy(history["step"], history["variance"])
    bottom.set_ylabel("variance / Ha²")
    bottom.set_xlabel("step")
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.png")
    figure.savefig(temporary, dpi=150)
    temporary.replace(path)


def _write_atomically(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    for package in ("nnqs_lightning", "lightning", "pyscf", "numba", "deepspeed"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions
