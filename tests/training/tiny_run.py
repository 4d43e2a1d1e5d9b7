"""A LightningModule of a few numbers that trains in a moment, with draws that depend on the step alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from nnqs_lightning.training.checkpoint import RunCheckpoint
from nnqs_lightning.training.preemption import Preemption
from nnqs_lightning.training.resume import resolve_ckpt_path
from nnqs_lightning.training.run_logs import RunCSVLogger, RunTensorBoardLogger


class Draws:
    def __init__(self, module: TinyModule, length: int) -> None:
        self.module, self.length = module, length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(self.length):
            generator = torch.Generator().manual_seed(self.module.trainer.global_step)
            yield torch.randn(8, generator=generator)


class TinyModule(LightningModule):
    """The "energy" is a noisy quadratic form of eight parameters; ``spoil`` may replace it at a given step."""

    def __init__(self, steps: int, spoil: Callable[[int, float], float] = lambda step, energy: energy) -> None:
        super().__init__()
        self.weights = torch.nn.Parameter(torch.linspace(-1, 1, 8))
        self.steps, self.spoil = steps, spoil

    def train_dataloader(self) -> Draws:
        return Draws(self, self.steps)

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        loss = ((self.weights - 0.1 * batch.to(self.device)) ** 2).sum()
        energy = self.spoil(self.trainer.global_step, float(loss.detach()))
        self.log("energy/mean", energy, on_step=True, on_epoch=False, batch_size=1)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.05)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def fit(
    run_dir: Path,
    *,
    steps: int = 12,
    request: str | None = "auto",
    callbacks: list[Callback] | None = None,
    every_steps: int = 4,
    every_minutes: float = 0.0,
    keep: int = 3,
    module: TinyModule | None = None,
    logs: bool = True,
    **trainer_options: Any,
) -> Trainer:
    """Train for ``steps`` in all and return the trainer."""
    module = module or TinyModule(steps)
    checkpoint = RunCheckpoint(every_steps=every_steps, every_minutes=every_minutes, keep=keep)
    trainer = Trainer(
        accelerator="cpu",
        max_steps=steps,
        max_epochs=-1,
        default_root_dir=run_dir,
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=[RunCSVLogger(run_dir), RunTensorBoardLogger(run_dir)] if logs else False,
        callbacks=[*(callbacks or []), checkpoint, Preemption()],
        **trainer_options,
    )
    trainer.fit(module, ckpt_path=resolve_ckpt_path(run_dir, request))
    return trainer


def final_weights(trainer: Trainer) -> list[float]:
    return trainer.lightning_module.weights.detach().tolist()
