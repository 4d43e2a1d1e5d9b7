"""Small runs shared by the tests of this room."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer, seed_everything

from nnqs_lightning.ansatz import TransformerAnsatz
from nnqs_lightning.chem import HubbardChain
from nnqs_lightning.optim import EnergyGradient
from nnqs_lightning.sampling import Sampler, SystematicSampler
from nnqs_lightning.training.datamodule import MonteCarloDataModule
from nnqs_lightning.training.module import NNQSModule

SMALL = partial(TransformerAnsatz, d_model=8, n_heads=2, n_layers=1)
SYSTEM = HubbardChain(n_sites=4, u=2.0)


def module(**options: Any) -> NNQSModule:
    """A tiny wave function of a four-site Hubbard chain, the same at every call."""
    seed_everything(5, verbose=False)
    plain = {
        "ansatz": SMALL,
        "direction": EnergyGradient(),
        "optimizer": partial(torch.optim.AdamW, lr=1e-2),
        "pretraining": None,
    }
    options = {**plain, **options}
    return NNQSModule(system=SYSTEM, **options)


def data(sampler: Sampler | None = None, **options: Any) -> MonteCarloDataModule:
    return MonteCarloDataModule(sampler=sampler or SystematicSampler(n_walkers=10_000), seed=3, **options)


def trainer(folder: Path, max_steps: int, **options: Any) -> Trainer:
    quiet = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
        "accelerator": "cpu",
        "limit_val_batches": 0,
        "max_epochs": -1,
    }
    return Trainer(default_root_dir=folder, max_steps=max_steps, **{**quiet, **options})
