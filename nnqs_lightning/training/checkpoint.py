"""Saving: by steps, by minutes and on request, all ranks at the same step, never half a checkpoint."""

from __future__ import annotations

import io
import math
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.utilities.rank_zero import rank_zero_warn

from nnqs_lightning.errors import UserError
from nnqs_lightning.training.checkpoint_store import STATE, CheckpointStore
from nnqs_lightning.training.run_logs import continue_logs, flush_logs, pending_row
from nnqs_lightning.training.strategies.shards import is_sharded, read_whole

PACKAGES = ("nnqs_lightning", "torch", "lightning", "numpy", "deepspeed")


class RunCheckpoint(Checkpoint):
    """Keeps a run resumable in ``checkpoints/`` of the run folder (``trainer.default_root_dir``).

    A checkpoint is written beside the others and takes its place by one rename, with a manifest of sizes and checksums.
    A step whose energy is not finite is never saved. When the disk is full the run goes on and says so.

    Args:
        every_steps: Save after every so many steps; 0 does not save by steps.
        every_minutes: Save when so many minutes have passed since the last save; 0 does not save by time.
        keep: Number of newest checkpoints kept; the one of lowest energy is kept beside them.
        monitor: Logged metric that ``best`` means, in hartree.
    """

    def __init__(
        self, every_steps: int = 100, every_minutes: float = 10.0, keep: int = 3, monitor: str = "energy/mean"
    ) -> None:
        for key, value, least in (
            ("every_steps", every_steps, 0),
            ("every_minutes", every_minutes, 0),
            ("keep", keep, 1),
        ):
            if value < least:
                raise UserError(f"checkpoint.{key} is {value}, expected at least {least}")
        self.every_steps = every_steps
        self.every_minutes = every_minutes
        self.keep = keep
        self.monitor = monitor
        self.saved_step = -1
        """Step of the last save of this process."""
        self._row: dict[str, Any] = {}
        self._save_time = self._batch_time = time.monotonic()
        self._longest_step = 0.0

    def state_dict(self) -> dict[str, Any]:
        return {"row": self._row}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._row = state_dict["row"]

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if type(trainer.strategy.checkpoint_io) is TorchCheckpointIO:
            trainer.strategy.checkpoint_io = _DirectCheckpointIO()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        mine = str(trainer.ckpt_path)
        if trainer.strategy.broadcast(mine) != mine:
            raise UserError(
                f"rank {trainer.global_rank} would resume from {mine}, rank 0 from another checkpoint: put "
                "trainer.default_root_dir on a file system that all nodes share"
            )
        if trainer.is_global_zero:
            continue_logs(trainer.loggers, trainer.global_step, self._row)
        if trainer.ckpt_path:
            self.saved_step = trainer.global_step
        else:
            self.save(trainer, "start")
        self._save_time = self._batch_time = time.monotonic()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        now = time.monotonic()
        self._longest_step = max(self._longest_step, now - self._batch_time)
        reason = self._due(trainer, now)
        if reason:
            self.save(trainer, reason)
        self._batch_time = time.monotonic()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.saved_step != trainer.global_step:
            self.save(trainer, "end")

    def _due(self, trainer: Trainer, now: float) -> str | None:
        step = trainer.global_step
        if step == self.saved_step:
            return None
        if 0 <= trainer.max_steps <= step:
            return "end"
        if self.every_steps and step % self.every_steps == 0:
            return f"every {self.every_steps} steps"
        late = self.every_minutes > 0 and now - self._save_time > 60 * self.every_minutes
        if self.every_minutes and trainer.strategy.reduce_boolean_decision(late, all=False):
            return f"every {self.every_minutes:g} minutes"
        return None

    def save(self, trainer: Trainer, reason: str) -> Path | None:
        """Save the state after the current step; every rank calls it, at the same step.

        Returns:
            The checkpoint, on every rank; None if the step is not worth keeping or the disk refused.
        """
        energy = trainer.callback_metrics.get(self.monitor)
        if trainer.fast_dev_run or (energy is not None and not math.isfinite(energy)):  # type: ignore[attr-defined]
            return None
        started = time.monotonic()
        flush_logs(trainer.loggers)
        self._row = pending_row(trainer)
        store = CheckpointStore(trainer.default_root_dir)
        writing, problem = _on_rank_zero(trainer, lambda: store.begin(trainer.global_step))
        problem = problem or _write_state(trainer, writing / STATE)
        target = None
        if problem is None:
            figures = {
                "step": trainer.global_step,
                "energy": None if energy is None else float(energy),
                "reason": reason,
                "save_seconds": round(time.monotonic() - started, 3),
                "step_seconds": round(self._longest_step, 3),
                "world_size": trainer.world_size,
                "strategy": type(trainer.strategy).__name__,
                "versions": _versions(),
            }
            target, problem = _on_rank_zero(trainer, lambda: self._publish(trainer, store, writing, figures))
        self._save_time, self._longest_step = time.monotonic(), 0.0
        if problem:
            store.discard(trainer.global_step)
            rank_zero_warn(f"step {trainer.global_step} could not be saved ({problem}): the run goes on")
            return None
        self.saved_step = trainer.global_step
        return target

    def _publish(self, trainer: Trainer, store: CheckpointStore, writing: Path, figures: dict[str, Any]) -> Path:
        config = Path(trainer.default_root_dir) / "config.yaml"
        if config.exists():
            shutil.copy(config, writing)
        checkpoint = store.publish(writing, **figures)
        store.keep_if_best(checkpoint)
        store.prune(self.keep)
        return checkpoint


def _on_rank_zero(trainer: Trainer, action: Callable[[], Any]) -> tuple[Any, str | None]:
    """Result of ``action`` on rank 0, known to every rank, or why the file system refused."""
    outcome: tuple[Any, str | None] = (None, None)
    if trainer.is_global_zero:
        try:
            outcome = action(), None
        except OSError as error:
            outcome = None, str(error)
    return trainer.strategy.broadcast(outcome)


def _write_state(trainer: Trainer, path: Path) -> str | None:
    """Write the state, a collective; why it failed, if it did on any rank."""
    problem = None
    try:
        trainer.save_checkpoint(path, weights_only=False)
    except OSError as error:
        problem = str(error)
        # The other ranks wait in the barrier with which save_checkpoint ends.
        trainer.strategy.barrier("Trainer.save_checkpoint")
    if trainer.strategy.reduce_boolean_decision(problem is not None, all=False):
        return problem or "another rank could not write its part"
    return None


class _DirectCheckpointIO(TorchCheckpointIO):
    """Writes to the given path: the folder is renamed as a whole, so Lightning's detour over /tmp is not needed.

    Reads what DeepSpeed has sharded too, so that a run may go on without DeepSpeed.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        # Through memory: torch.save reports a full disk as a RuntimeError, a plain write as the OSError that it is.
        content = io.BytesIO()
        torch.save(checkpoint, content)
        Path(path).write_bytes(content.getbuffer())

    def load_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return read_whole(path) if is_sharded(path) else super().load_checkpoint(path, *args, **kwargs)


def _versions() -> dict[str, str]:
    versions = {}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions
