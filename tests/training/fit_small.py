"""Rank script: fits of a small wave function, each a word of ``key=value`` pairs joined by commas."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import small
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy
from ranks import report
from toy import TIMEOUT, deepspeed

from nnqs_lightning.optim import EnergyGradient, MinSR, Spring
from nnqs_lightning.sampling import SystematicSampler
from nnqs_lightning.training.profiling import PhaseTimes
from nnqs_lightning.training.strategies import full_gradients

DIRECTIONS = {"gradient": EnergyGradient, "minsr": MinSR, "spring": Spring}
OPTIMIZERS = {
    "adamw": partial(torch.optim.AdamW, lr=1e-2),
    "sgd": partial(torch.optim.SGD, lr=0.1),
    "momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
}


class Record(Callback):
    """Energies, gradients and determinants of every step."""

    def __init__(self) -> None:
        self.energies: list[float] = []
        self.gradients: list[torch.Tensor] = []
        self.unique: list[int] = []
        self.figures: dict[str, float] = {}

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        gradients = full_gradients(trainer.strategy, pl_module.ansatz.parameters())  # type: ignore[operator,union-attr]
        self.gradients.append(torch.cat([gradient.flatten() for gradient in gradients]).double())

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, *_: Any
    ) -> None:
        self.energies.append(float(trainer.callback_metrics["energy/mean"]))
        self.unique.append(len(batch))
        self.figures = {key: float(value) for key, value in trainer.callback_metrics.items()}


def run(folder: str, options: dict[str, str]) -> Record:
    module = small.module(
        direction=DIRECTIONS[options.get("direction", "gradient")](),
        optimizer=OPTIMIZERS[options.get("optimizer", "adamw")],
        max_rows=int(options.get("max_rows", 8192)),
    )
    strategy: Any = options.get("strategy", "ddp")
    strategy = DDPStrategy(timeout=TIMEOUT) if strategy == "ddp" else deepspeed(int(strategy))
    record = Record()
    trainer = small.trainer(
        Path(folder),
        int(options.get("steps", 20)),
        strategy=strategy,
        precision=options.get("precision", "32-true"),
        devices=int(os.environ["TEST_RANKS"]),
        callbacks=[PhaseTimes(table=False), record],
    )
    walkers = int(options.get("walkers", 10_000))
    trainer.fit(module, datamodule=small.data(SystematicSampler(n_walkers=walkers)))
    return record


if __name__ == "__main__":
    folder, *words = sys.argv[1:]
    results = {}
    for word in words:
        record = run(folder, dict(pair.split("=") for pair in word.split(",") if pair))
        print(word, record.energies[-1], record.unique, flush=True)
        results[word] = {
            "energies": record.energies,
            "gradients": record.gradients,
            "unique": record.unique,
            "figures": record.figures,
        }
    report(folder, results)
