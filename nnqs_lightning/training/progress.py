"""What the user watches while a run goes on."""

from __future__ import annotations

import time
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar
from lightning.pytorch.utilities.rank_zero import rank_zero_only
from rich.console import Console


def headline(metrics: dict[str, Any], reference: float | None) -> dict[str, str]:
    """The figures of a step that matter, in the units in which they are read.

    Args:
        metrics: logged metrics (``energy/mean`` in hartree, …).
        reference: best reference energy in hartree, None if there is none.
    """
    line: dict[str, str] = {}
    energy = metrics.get("energy/mean")
    if energy is not None:
        line["E"] = f"{float(energy):.6f}"
        if reference is not None:
            line["err/mHa"] = f"{1e3 * (float(energy) - reference):+.3f}"
    for key, label, form in (
        ("energy/variance", "var", ".1e"),
        ("sampling/unique", "unique", ",.0f"),
        ("sampling/walkers", "walkers", ".0e"),
        ("pretrain/infidelity", "infidelity", ".1e"),
    ):
        if key in metrics:
            line[label] = format(float(metrics[key]), form)
    return line


class EnergyProgressBar(RichProgressBar):
    """Rich progress bar with energy, error against the reference, variance, unique determinants and walkers."""

    def __init__(self, reference: float | None = None) -> None:
        super().__init__(refresh_rate=1, leave=False)
        self.reference = reference

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        return headline(trainer.callback_metrics, self.reference)

    def _get_train_description(self, current_epoch: int) -> str:
        return "Optimising"


class EnergyLines(Callback):
    """The same figures as plain lines, for batch logs and pipes where a bar cannot be drawn.

    Args:
        every_seconds: Time between two lines.
    """

    def __init__(self, reference: float | None = None, every_seconds: float = 10.0) -> None:
        self.reference = reference
        self.every_seconds = every_seconds
        self._console = Console(soft_wrap=True)
        self._last = float("-inf")

    @rank_zero_only
    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        now = time.monotonic()
        if now - self._last < self.every_seconds and trainer.global_step < trainer.max_steps:
            return
        self._last = now
        figures = "  ".join(
            f"{key} {value}" for key, value in headline(trainer.callback_metrics, self.reference).items()
        )
        self._console.print(f"step {trainer.global_step}  {figures}", highlight=False)
