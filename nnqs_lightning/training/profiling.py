"""Where the time of a step goes, how unequal ranks are, and what they send each other."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from rich.console import Console
from rich.table import Table

from nnqs_lightning import distributed

PHASES = {
    "sample": "draw of the sample",
    "local_energy": "local energies",
    "direction": "direction of descent",
    "backward": "differentiated pass, with the exchange of gradients",
    "optimizer": "step of the optimiser, with the exchange of parameters",
    "gather": "collectives within the first three, waiting included",
    "other": "logging, checkpoints, Lightning",
}


class Clock:
    """Seconds of this process by phase; time in collectives counts as the phase ``gather``."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time of the block as ``name``."""
        started, waited = _now(), distributed.traffic.seconds
        yield
        gather = distributed.traffic.seconds - waited
        self.seconds[name] += _now() - started - gather
        self.seconds["gather"] += gather

    def take(self) -> dict[str, float]:
        """Seconds since the last call."""
        seconds, self.seconds = self.seconds, dict.fromkeys(PHASES, 0.0)
        return seconds


clock = Clock()
"""This process's; a process runs one fit at a time."""


class PhaseTimes(Callback):
    """Logs ``time/<phase>`` (seconds of the slowest rank), imbalance and traffic of every step; a table at the end.

    ``imbalance/unique`` and ``imbalance/time`` are the largest rank's over the mean, of unique determinants and of
    seconds outside collectives: 1 is perfect. ``traffic/bytes`` is what one rank receives in a step for samples,
    amplitudes and energies; gradients and parameters, which the strategy moves, are not in it.

    Args:
        table: Whether to print the table at the end of ``fit``.
    """

    def __init__(self, table: bool = True) -> None:
        self.table = table
        self.steps = 0
        self.totals: dict[str, float] = {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.steps, self.totals = 0, {}
        self._begin()

    def _begin(self) -> None:
        clock.take()
        self._step_started = _now()
        self._bytes = distributed.traffic.received_bytes

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: torch.Tensor) -> None:
        self._mark = _now()

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        clock.seconds["backward"] += _now() - self._mark

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        self._mark = _now()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        seconds = clock.take()
        seconds["optimizer"] += _now() - self._mark
        seconds["other"] = _now() - self._step_started - sum(seconds.values())
        received = distributed.traffic.received_bytes - self._bytes
        figures = self._over_ranks(seconds, len(batch), received, trainer.strategy.root_device)
        pl_module.log_dict(figures, on_step=True, on_epoch=False, batch_size=1)
        self.steps += 1
        for key, value in figures.items():
            self.totals[key] = self.totals.get(key, 0.0) + value
        self._begin()

    @staticmethod
    def _over_ranks(seconds: dict[str, float], n_unique: int, received: int, device: torch.device) -> dict[str, float]:
        """Figures of the step over all ranks; collective."""
        work = sum(seconds.values()) - seconds["gather"] - seconds["other"]
        mine = torch.tensor([*seconds.values(), work, n_unique, received], dtype=torch.float64, device=device)
        ranks = distributed.all_gather_rows(mine.unsqueeze(0))[0]
        largest, mean = ranks.amax(0).tolist(), ranks.mean(0).tolist()
        figures = {f"time/{name}": value for name, value in zip(seconds, largest, strict=False)}
        figures["imbalance/time"] = largest[-3] / mean[-3]
        figures["imbalance/unique"] = largest[-2] / max(mean[-2], 1e-12)
        figures["traffic/bytes"] = largest[-1]
        return figures

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.table and self.steps and trainer.is_global_zero:
            Console().print(self.as_table())

    def as_table(self) -> Table:
        """Means over the steps of this process."""
        means = {key: total / self.steps for key, total in self.totals.items()}
        whole = sum(value for key, value in means.items() if key.startswith("time/"))
        table = Table(title="Where the time went", caption=_caption(means))
        table.add_column("phase")
        table.add_column("ms per step", justify="right")
        table.add_column("share", justify="right")
        for name, meaning in PHASES.items():
            seconds = means[f"time/{name}"]
            table.add_row(meaning, f"{1e3 * seconds:.1f}", f"{seconds / whole:.0%}")
        return table


def _caption(means: dict[str, float]) -> str:
    return (
        f"slowest rank of {distributed.world_size()}; largest rank over mean: {means['imbalance/unique']:.2f} in "
        f"determinants, {means['imbalance/time']:.2f} in time; {means['traffic/bytes'] / 1e6:.3g} MB received per step"
    )


def _now() -> float:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter()
