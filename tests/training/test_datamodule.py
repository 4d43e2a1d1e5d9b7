"""Samples are fresh, reproducible and separate from those of an evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from small import data, module, trainer

from nnqs_lightning.errors import UserError
from nnqs_lightning.sampling import SystematicSampler
from nnqs_lightning.training.datamodule import MonteCarloDataModule


class Freshness(Callback):
    """Compares log ψ of each batch with the parameters that are about to be trained on it."""

    def __init__(self) -> None:
        self.gaps: list[float] = []
        self.steps: list[int] = []

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        with torch.no_grad():
            now = pl_module.ansatz.log_psi(batch.determinants)
        self.gaps.append((now - batch.log_psi).abs().max().item())
        self.steps.append(batch.step)


def test_step_n_trains_on_samples_of_parameters_n(tmp_path: Path):
    seen = Freshness()
    trainer(tmp_path, 6, callbacks=[seen]).fit(module(), data())
    assert seen.steps == [0, 1, 2, 3, 4, 5]
    assert max(seen.gaps) < 1e-5


def test_samples_stay_fresh_over_epochs(tmp_path: Path):
    seen = Freshness()
    trainer(tmp_path, 6, callbacks=[seen]).fit(module(), data(steps_per_epoch=2))
    assert seen.steps == [0, 1, 2, 3, 4, 5]
    assert max(seen.gaps) < 1e-5


def test_the_network_moves_between_steps(tmp_path: Path):
    """Else the two tests above could not fail."""
    before, network = module(), module()
    trainer(tmp_path, 1).fit(network, data())
    determinants = before.hamiltonian.sector.determinants()
    assert (before.ansatz.log_psi(determinants) - network.ansatz.log_psi(determinants)).abs().max() > 1e-3


def test_an_evaluation_never_repeats_a_training_draw(tmp_path: Path):
    network, source = module(), data(SystematicSampler(n_walkers=50))
    run = trainer(tmp_path, 1)
    run.fit(network, source)
    training = source.train_dataloader().draw(0)
    evaluation = source.evaluation_stream().draw(0)
    assert training.counts.tolist() != evaluation.counts.tolist()
    assert torch.equal(training.counts, source.train_dataloader().draw(0).counts)


@pytest.mark.parametrize("key", ["evaluation_draws", "steps_per_epoch"])
def test_counts_below_one_are_refused_by_key(key: str):
    with pytest.raises(UserError, match=f"data.{key} is -1"):
        MonteCarloDataModule(**{key: -1})
