"""After a shortage of memory on any rank, all ranks work in smaller pieces."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.rank_zero import rank_zero_warn

from nnqs_lightning import distributed, memory

PIECES = ("chunk_size", "max_chunk")
"""Attributes of samplers and local energies that bound what meets the network at once."""


class MemoryWatch(Callback):
    """Halves the pieces of the sampler and of the local energy on every rank when one of them ran out of memory.

    The step in which it happens is finished by the rank itself, in smaller pieces (:mod:`nnqs_lightning.memory`); from
    the next one on every rank spares it the attempt.
    """

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        shortages = torch.tensor(memory.take_shortages(), device=trainer.strategy.root_device)
        if not distributed.all_reduce_max(shortages):
            return
        sampler = getattr(getattr(trainer, "datamodule", None), "sampler", None)
        changes = []
        for part in (sampler, getattr(pl_module, "local_energy", None)):
            for name in PIECES:
                if getattr(part, name, 1) > 1:
                    setattr(part, name, getattr(part, name) // 2)
                    changes.append(f"{type(part).__name__}.{name} = {getattr(part, name)}")
        rank_zero_warn(
            f"step {trainer.global_step}: memory was short. From here on: {', '.join(changes) or 'nothing to halve'}"
        )
