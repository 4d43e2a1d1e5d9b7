"""Monte-Carlo samples of the current wave function as a Lightning data source."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from jsonargparse import lazy_instance
from lightning.pytorch import LightningDataModule, Trainer

from nnqs_lightning.ansatz import Ansatz
from nnqs_lightning.errors import UserError
from nnqs_lightning.fock import SampleBatch
from nnqs_lightning.sampling import Sampler, SumOverStates, SystematicSampler
from nnqs_lightning.training.profiling import clock
from nnqs_lightning.training.strategies import gather_parameters

TRAIN, EVALUATE = 0, 1
"""Streams of randomness: an evaluation never repeats a training draw."""


class Sealed:
    """A batch that precision plugins leave alone: they would cast its float64 weights to the network's precision."""

    def __init__(self, batch: SampleBatch) -> None:
        self.batch = batch


class SampleStream:
    """A sized iterable of fresh samples.

    The length matters: Lightning prefetches one batch from a loader without a length, and step n would then train on
    samples of the parameters of step n − 1. A draw depends on (seed, step, stream) alone, so a resumed run continues
    with the same samples wherever in the stream it starts.
    """

    def __init__(self, trainer: Trainer, sampler: Sampler, length: int, seed: int, stream: int) -> None:
        self.trainer = trainer
        self.source = sampler  # Lightning takes an attribute ``sampler`` for that of a torch DataLoader
        self.length = length
        self.seed = 0 if seed is None else seed
        self.stream = stream

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Sealed]:
        for index in range(self.length):
            # Evaluation runs at one step: there the index tells its draws apart.
            step = self.trainer.global_step if self.stream == TRAIN else index
            yield Sealed(self.draw(step))

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the optimiser step says where a stream stands."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """See :meth:`state_dict`."""

    def draw(self, step: int) -> SampleBatch:
        """One sample of the current parameters, without gradient."""
        gather_parameters(self.trainer.strategy)
        with clock.phase("sample"), torch.no_grad(), self.trainer.precision_plugin.forward_context():
            batch = self.source.sample(_ansatz(self.trainer), seed=self.seed, step=step, stream=self.stream)
        if self.stream == TRAIN:
            self.source.observe(batch)
        return batch


class MonteCarloDataModule(LightningDataModule):
    """Draws every batch from the wave function that is being trained.

    Args:
        sampler: Draws the training samples.
        evaluation_sampler: Draws for validate, test and predict, usually a larger sample; null takes ``sampler``.
        evaluation_draws: Independent draws that validate and test average over.
        steps_per_epoch: Steps that Lightning calls an epoch; null makes the whole run one epoch.
        exact_limit: ``test`` also sums over the whole sector where it has at most this many determinants.
        seed: Seed of the draws; null takes ``seed_everything``.
    """

    def __init__(
        self,
        sampler: Sampler = lazy_instance(SystematicSampler),  # noqa: B008
        evaluation_sampler: Sampler | None = None,
        evaluation_draws: int = 1,
        steps_per_epoch: int | None = None,
        exact_limit: int = 20_000,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        for key, value in {"evaluation_draws": evaluation_draws, "steps_per_epoch": steps_per_epoch or 1}.items():
            if value < 1:
                raise UserError(f"data.{key} is {value}, expected at least 1")
        # Copies: the adapted number of walkers must not reach another module built from the same objects.
        self.sampler = copy.deepcopy(sampler)
        self.evaluation_sampler = copy.deepcopy(evaluation_sampler) if evaluation_sampler else self.sampler
        self.evaluation_draws = evaluation_draws
        self.steps_per_epoch = steps_per_epoch
        self.exact_limit = exact_limit
        self.seed = 0 if seed is None else seed

    def train_dataloader(self) -> SampleStream:
        assert self.trainer is not None
        length = self.steps_per_epoch or (self.trainer.max_steps if self.trainer.max_steps > 0 else 1000)
        return SampleStream(self.trainer, self.sampler, length, self.seed, TRAIN)

    def val_dataloader(self) -> SampleStream:
        return self.evaluation_stream()

    def test_dataloader(self) -> list[SampleStream]:
        assert self.trainer is not None
        if _ansatz(self.trainer).sector.size > self.exact_limit:
            return [self.evaluation_stream()]
        exact = SampleStream(self.trainer, SumOverStates(self.exact_limit), 1, self.seed, EVALUATE)
        return [self.evaluation_stream(), exact]

    def predict_dataloader(self) -> SampleStream:
        assert self.trainer is not None
        return SampleStream(self.trainer, self.evaluation_sampler, 1, self.seed, EVALUATE)

    def evaluation_stream(self) -> SampleStream:
        """Fresh samples for an energy that is reported."""
        assert self.trainer is not None
        return SampleStream(self.trainer, self.evaluation_sampler, self.evaluation_draws, self.seed, EVALUATE)

    def on_before_batch_transfer(self, batch: Sealed, dataloader_idx: int) -> SampleBatch:
        return batch.batch

    def state_dict(self) -> dict[str, Any]:
        return {"sampler": self.sampler.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.sampler.load_state_dict(state_dict["sampler"])


def _ansatz(trainer: Trainer) -> Ansatz:
    ansatz = trainer.lightning_module.ansatz
    assert isinstance(ansatz, Ansatz)
    return ansatz
