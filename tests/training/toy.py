"""A wave function of a few hundred parameters, trained as the real one is: draw, coefficients, one pass."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nnqs_lightning.training.strategies import DeepSpeed, full_gradients, gather_parameters

STEPS = 20
N_ROWS = 12
TIMEOUT = timedelta(seconds=60)


class ToyAnsatz(nn.Module):
    """log ψ of rows of 6 signs."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh())
        self.head = nn.Linear(16, 2)
        self.calls = 0

    def forward(self, rows: Tensor) -> Tensor:
        self.calls += 1
        out = self.head(self.body(rows.to(self.head.weight.dtype))).double()
        return torch.complex(out[:, 0], out[:, 1])


def rows_of(step: int, rank: int, world_size: int) -> tuple[Tensor, Tensor]:
    """This rank's share of the rows of a step, and their complex coefficients.

    The whole is the same on any number of ranks. The first rank takes more than its share and, at every fourth step,
    everything.
    """
    generator = torch.Generator().manual_seed(step)
    rows = torch.randint(0, 2, (N_ROWS, 6), generator=generator).double() * 2 - 1
    coefficients = torch.randn(N_ROWS, 2, dtype=torch.float64, generator=generator)
    greedy = N_ROWS if step % 4 == 0 else N_ROWS - 2 * (world_size - 1) + 1
    bounds = (
        [0, *(min(N_ROWS, greedy + 2 * i) for i in range(world_size - 1)), N_ROWS] if world_size > 1 else [0, N_ROWS]
    )
    share = slice(bounds[rank], bounds[rank + 1])
    return rows[share], torch.view_as_complex(coefficients)[share]


class ToyStream:
    """Calls the network a different number of times on each rank before it yields, as walks of unequal trees do."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer

    def __len__(self) -> int:
        return STEPS - self.trainer.global_step

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for step in range(self.trainer.global_step, STEPS):
            gather_parameters(self.trainer.strategy)
            rank = self.trainer.global_rank
            with torch.no_grad():
                for _ in range(1 + 3 * rank):
                    self.trainer.lightning_module.ansatz(torch.ones(2, 6))
            yield rows_of(step, rank, self.trainer.world_size)


class ToyModule(LightningModule):
    """Minimises Σ Re(c* log ψ) + ¼ |log ψ|², in pieces of ``max_rows`` rows."""

    def __init__(self, max_rows: int | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.ansatz = ToyAnsatz()
        self.max_rows = max_rows
        self.losses: list[float] = []
        self.gradients: list[Tensor] = []

    def train_dataloader(self) -> ToyStream:
        return ToyStream(self.trainer)

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.ansatz.parameters(), lr=1e-2)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        with torch.no_grad():
            for _ in range(1 + 2 * self.global_rank):
                self.ansatz(batch[0])

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        rows, coefficients = batch
        pieces = 1 if self.max_rows is None else -(-N_ROWS // self.max_rows)
        loss = torch.zeros((), dtype=torch.float64)
        for piece, c in zip(rows.tensor_split(pieces), coefficients.tensor_split(pieces), strict=True):
            log_psi = self.ansatz(piece) if pieces == 1 else checkpoint(self.ansatz, piece, use_reentrant=False)
            loss = loss + ((c.conj() * log_psi).real + 0.25 * log_psi.abs().square()).sum()
        whole = self.trainer.strategy.reduce(loss.detach(), reduce_op="sum")
        self.losses.append(float(whole))
        return loss * self.trainer.world_size

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        gradients = full_gradients(self.trainer.strategy, self.ansatz.parameters())
        self.gradients.append(torch.cat([g.flatten() for g in gradients]).double())


def fit(
    strategy: Any, folder: str, max_rows: int | None = None, ckpt_path: str | None = None, **flags: Any
) -> tuple[ToyModule, Trainer]:
    """20 steps on as many ranks as the environment says."""
    module = ToyModule(max_rows)
    trainer = Trainer(
        accelerator="cpu",
        devices=int(os.environ["TEST_RANKS"]),
        strategy=strategy,
        max_steps=flags.pop("max_steps", STEPS),
        default_root_dir=folder,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **flags,
    )
    trainer.fit(module, ckpt_path=ckpt_path, weights_only=False)
    return module, trainer


def deepspeed(stage: int) -> DeepSpeed:
    """Shards even the smallest parameter, as ZeRO-3 does with those of a large network."""
    zero = {"stage3_param_persistence_threshold": 0} if stage == 3 else {}
    return DeepSpeed(stage=stage, zero_options=zero, timeout=TIMEOUT)
