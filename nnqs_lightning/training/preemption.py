"""Stopping on request: every rank at the same step, saved, and told to whoever starts the run again."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

from nnqs_lightning import distributed, signals
from nnqs_lightning.training.checkpoint import RunCheckpoint

MARKER_VARIABLE = "NNQS_REQUEUE_MARKER"
"""Names the file that tells the batch script to put the job back into the queue."""


class Preemption(Checkpoint):
    """Stops a fit at the end of the step in which any rank received SIGUSR1, SIGTERM or Ctrl-C, and saves first.

    A ``Checkpoint`` only so that Lightning runs it after every callback whose state is saved; it goes after
    :class:`RunCheckpoint` in the list.
    """

    def __init__(self) -> None:
        self.stopped_by: signal.Signals | None = None
        """The signal that cut training short."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit":
            signals.release()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.stopped_by = None
        # Lightning has put its own handler for SIGTERM in front of ours, one that broadcasts from inside the handler.
        signals.arm()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        mine = signals.requested()
        number = torch.tensor(int(mine or 0), device=trainer.strategy.root_device)
        agreed = int(distributed.all_reduce_max(number))
        if not agreed or 0 <= trainer.max_steps <= trainer.global_step:
            return
        self.stopped_by = signal.Signals(agreed)
        self._save(trainer)
        trainer.should_stop = True
        # Lightning would first train up to these.
        trainer.fit_loop.min_epochs = trainer.fit_loop.epoch_loop.min_steps = None

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        signals.release()

    def _save(self, trainer: Trainer) -> None:
        assert self.stopped_by is not None
        reason = f"stopped by {self.stopped_by.name}"
        for callback in trainer.checkpoint_callbacks:
            if isinstance(callback, RunCheckpoint) and callback.saved_step != trainer.global_step:
                callback.save(trainer, reason)
        if trainer.is_global_zero:
            self._leave_marker(trainer)
            seconds = f", {signals.seconds_since_request():.2f} s after the signal" if signals.requested() else ""
            saved = max(
                (c.saved_step for c in trainer.checkpoint_callbacks if isinstance(c, RunCheckpoint)), default=-1
            )
            state = (
                "safe to start again" if saved == trainer.global_step else f"NOT saved, the last save is step {saved}"
            )
            print(
                f"step {trainer.global_step}: {reason}, {state}{seconds}. Continue with --ckpt_path auto "
                f"--trainer.default_root_dir {trainer.default_root_dir}",
                file=sys.stderr,
                flush=True,
            )
        # No rank leaves before the marker is there: the first exit makes srun end the others.
        trainer.strategy.barrier("Preemption")

    def _leave_marker(self, trainer: Trainer) -> None:
        """Without one (a full disk, say) the batch script counts the stop among the deaths, and requeues it too."""
        assert self.stopped_by is not None
        marker = os.environ.get(MARKER_VARIABLE)
        if marker and self.stopped_by is not signal.SIGINT:
            with suppress(OSError):
                Path(marker).write_text(f"{self.stopped_by.name} at step {trainer.global_step}\n")


def cut_short(trainer: Trainer) -> bool:
    """Whether the fit that has ended, or is ending, was stopped on request before its last step."""
    return any(isinstance(callback, Preemption) and callback.stopped_by for callback in trainer.callbacks)  # type: ignore[attr-defined]


def exit_if_cut_short(trainer: Trainer) -> None:
    """After ``fit``: end the process with a code of ``signals.EXIT_CODES`` if a stop signal cut it short."""
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, Preemption) and callback.stopped_by:
            sys.exit(signals.EXIT_CODES[callback.stopped_by])
