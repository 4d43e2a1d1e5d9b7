"""A wave function that runs away is taken back to its last good state, with a smaller step."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch.optim import Optimizer

from nnqs_lightning import distributed
from nnqs_lightning.errors import UserError
from nnqs_lightning.training.checkpoint import RunCheckpoint
from nnqs_lightning.training.checkpoint_store import STATE, CheckpointStore, DamagedCheckpoint, verify


class EnergyWatch(Callback):
    """Steps back to the newest good checkpoint when the energy or a parameter is not finite, or the energy explodes.

    Parameters, optimiser, schedule and sampler go back; steps go on counting, so the next draw is a fresh one. The
    learning rate is multiplied by ``factor``. A second step back without a save in between goes one checkpoint further.

    Args:
        max_step_backs: Times a run may step back before it ends with an error; 0 ends it at the first.
        factor: Learning rate after a step back, over the one before.
        max_rise: Energy above the lowest one so far that counts as an explosion, in hartree; null for none.
        monitor: Logged metric with the energy of a step, in hartree.
    """

    def __init__(
        self,
        max_step_backs: int = 3,
        factor: float = 0.5,
        max_rise: float | None = 10.0,
        monitor: str = "energy/mean",
    ) -> None:
        if not 0 < factor <= 1:
            raise UserError(f"watch.factor is {factor}, expected a number above 0 and up to 1")
        self.max_step_backs = max_step_backs
        self.factor = factor
        self.max_rise = max_rise
        self.monitor = monitor
        self.step_backs = 0
        self._lowest = math.inf
        self._tried: int | None = None
        """Serial of the checkpoint last gone back to."""

    def state_dict(self) -> dict[str, Any]:
        return {"step_backs": self.step_backs, "lowest": self._lowest}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.step_backs, self._lowest = state_dict["step_backs"], state_dict["lowest"]

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        pl_module.survives_divergence = stage == "fit" and bool(_checkpoints(trainer))  # type: ignore[assignment]

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        energy = float(trainer.callback_metrics[self.monitor])
        problem = self._diagnose(energy, pl_module)
        flag = torch.tensor(int(problem is not None), device=trainer.strategy.root_device)
        if distributed.all_reduce_max(flag):
            self._step_back(trainer, problem or "another rank's parameters are not finite")
        else:
            self._lowest = min(self._lowest, energy)

    def _diagnose(self, energy: float, module: LightningModule) -> str | None:
        if not math.isfinite(energy):
            return f"the energy is {energy}"
        if self.max_rise is not None and energy > self._lowest + self.max_rise:
            return f"the energy rose to {energy:.3f} from {self._lowest:.3f} hartree"
        if not all(bool(torch.isfinite(parameter).all()) for parameter in module.parameters()):
            return "a parameter is not finite"
        return None

    def _step_back(self, trainer: Trainer, problem: str) -> None:
        step = trainer.global_step
        target = self._target(trainer) if self.step_backs < self.max_step_backs else None
        if target is None:
            raise UserError(
                f"step {step}: {problem}, after {self.step_backs} step(s) back. Lower model.optimizer's lr or the "
                "trust region of model.direction, and resume from an earlier checkpoint with --ckpt_path"
            )
        self.step_backs += 1
        rate = self._restore(trainer, target)
        for checkpoint in _checkpoints(trainer):
            checkpoint.saved_step = step
        rank_zero_warn(
            f"step {step}: {problem}. Back to {target.name} with learning rate {rate:.3g} "
            f"({self.step_backs} of {self.max_step_backs} times)"
        )

    def _target(self, trainer: Trainer) -> Path | None:
        """The newest whole checkpoint, older than the one tried last if nothing was saved since; rank 0 chooses."""
        choice: tuple[Path, int] | None = None
        if trainer.is_global_zero:
            entries = CheckpointStore(trainer.default_root_dir).newest_first()
            if self._tried is not None and entries and entries[0][1].serial <= self._tried:
                entries = [entry for entry in entries if entry[1].serial < self._tried]
            for path, manifest in entries:
                try:
                    verify(path)
                except DamagedCheckpoint:
                    continue
                choice = path, manifest.serial
                break
        choice = trainer.strategy.broadcast(choice)
        if choice is None:
            return None
        self._tried = choice[1]
        return choice[0]

    def _restore(self, trainer: Trainer, target: Path) -> float:
        """Load ``target`` into the running fit; the learning rate that follows."""
        strategy = trainer.strategy
        state = strategy.load_checkpoint(target / STATE, weights_only=False)
        strategy.load_model_state_dict(state, strict=trainer.lightning_module.strict_loading)
        if strategy.lightning_restore_optimizer:
            strategy.load_optimizer_state_dict(state)
        for config, scheduler_state in zip(trainer.lr_scheduler_configs, state["lr_schedulers"], strict=True):
            config.scheduler.load_state_dict(scheduler_state)
        datamodule = getattr(trainer, "datamodule", None)
        if datamodule is not None and type(datamodule).__qualname__ in state:
            datamodule.load_state_dict(state[type(datamodule).__qualname__])
        earlier = state["callbacks"].get(self.state_key, {}).get("step_backs", 0)
        scale = self.factor ** (self.step_backs - earlier)
        for optimizer in trainer.optimizers:
            _scale_learning_rate(optimizer, scale)
        for config in trainer.lr_scheduler_configs:
            _scale_schedule(config.scheduler, scale)
        return float(trainer.optimizers[0].param_groups[0]["lr"])


def _checkpoints(trainer: Trainer) -> list[RunCheckpoint]:
    return [callback for callback in trainer.checkpoint_callbacks if isinstance(callback, RunCheckpoint)]


def _scale_learning_rate(optimizer: Optimizer, scale: float) -> None:
    for group in optimizer.param_groups:
        for key in ("lr", "initial_lr"):
            if key in group:
                group[key] = group[key] * scale


def _scale_schedule(scheduler: Any, scale: float) -> None:
    """Schedules compute from the rate they began with; a chain of them holds one each."""
    if hasattr(scheduler, "base_lrs"):
        scheduler.base_lrs = [rate * scale for rate in scheduler.base_lrs]
    for part in getattr(scheduler, "_schedulers", []):
        _scale_schedule(part, scale)
