"""Samplers that begin hot, or with few walkers, and end at |ψ|²; weights are honest throughout."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from nnqs_lightning import distributed
from nnqs_lightning.ansatz.base import Ansatz, AutoregressiveAnsatz
from nnqs_lightning.errors import UserError
from nnqs_lightning.fock import SampleBatch
from nnqs_lightning.sampling.base import Sampler
from nnqs_lightning.sampling.stats import sample_stats
from nnqs_lightning.sampling.systematic import SystematicSampler
from nnqs_lightning.sampling.walkers import WalkerSampler

TRAIN = 0
"""Stream of the draws that a schedule is for."""


class AnnealedSampler(Sampler):
    """Another sampler at a temperature that falls to one, and with a number of walkers that grows, over some steps.

    At temperature T each token is drawn with probability ∝ p^(1/T), so that unlikely determinants are met before ψ has
    given up on them. A determinant's weight is multiplied by |ψ|² over the probability with which it was drawn and
    divided by the sum: a self-normalised importance estimate of ⟨·⟩ under |ψ|², consistent and with a bias of order one
    over the number of walkers (Owen, *Monte Carlo theory*, chapter 9). The number of walkers grows geometrically.
    Evaluation draws are neither heated nor thinned out.

    Args:
        sampler: draws from a normalised wave function; null for a :class:`SystematicSampler`.
        steps: training steps until nothing is left of the schedule.
        temperature: T of the first step, 1 or more.
        start_walkers: number of walkers of the first step; null for those of ``sampler`` from the beginning.
        chunk_size: number of determinants evaluated together.

    Raises:
        UserError: a number out of range, or start_walkers for a sampler that has none or adapts them itself.
    """

    def __init__(
        self,
        sampler: Sampler | None = None,
        steps: int = 100,
        temperature: float = 1.5,
        start_walkers: int | float | None = None,
        chunk_size: int = 4096,
    ) -> None:
        if steps < 1 or chunk_size < 1 or not temperature >= 1:
            raise UserError(
                f"data.sampler: steps is {steps}, chunk_size {chunk_size} and temperature {temperature}, "
                "expected 1 or more of each"
            )
        self.sampler = sampler or SystematicSampler()
        self.steps = steps
        self.temperature = temperature
        self.start_walkers = start_walkers
        self.chunk_size = chunk_size
        if start_walkers is not None:
            if not isinstance(self.sampler, WalkerSampler) or self.sampler.target_unique is not None:
                raise UserError(
                    "data.sampler.start_walkers needs a sampler with walkers that does not adapt their number: set it "
                    "to null or data.sampler.sampler.target_unique to null"
                )
            if start_walkers < 1:
                raise UserError(f"data.sampler.start_walkers is {start_walkers}: set it to 1 or more")
            self._final_walkers = self.sampler.n_walkers

    def sample(self, ansatz: Ansatz, *, seed: int, step: int, stream: int = 0) -> SampleBatch:
        """See :meth:`Sampler.sample`.

        Raises:
            UserError: a temperature above one for an ansatz without conditionals.
        """
        left = max(1 - step / self.steps, 0.0) if stream == TRAIN else 0.0
        temperature = 1 + (self.temperature - 1) * left
        if self.start_walkers is not None:
            assert isinstance(self.sampler, WalkerSampler)
            self.sampler.n_walkers = round(self._final_walkers * (self.start_walkers / self._final_walkers) ** left)
        if temperature == 1:
            return self.sampler.sample(ansatz, seed=seed, step=step, stream=stream)
        if not isinstance(ansatz, AutoregressiveAnsatz):
            raise UserError(
                f"data.sampler.temperature is {self.temperature}, which needs conditionals, and model.ansatz "
                f"({type(ansatz).__name__}) has none: set it to 1"
            )
        hot = self.sampler.sample(Heated(ansatz, temperature), seed=seed, step=step, stream=stream)
        batch = self._reweighted(ansatz, hot)
        batch.stats["sampling/temperature"] = temperature
        return batch

    def observe(self, batch: SampleBatch) -> None:
        """Hand on to the other sampler."""
        self.sampler.observe(batch)

    def state_dict(self) -> dict[str, Any]:
        """That of the other sampler: schedules follow the step."""
        return self.sampler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`."""
        self.sampler.load_state_dict(state)

    def _reweighted(self, ansatz: AutoregressiveAnsatz, hot: SampleBatch) -> SampleBatch:
        log_psi = ansatz.evaluate(hot.determinants, self.chunk_size)
        log_weights = hot.weights.log() + 2 * (log_psi.real - hot.log_psi.real)
        floor = log_weights.new_full((1,), -torch.inf)
        weights = (log_weights - distributed.all_reduce_max(torch.cat([log_weights, floor]).max())).exp()
        weights = weights / distributed.all_reduce_sum(weights.sum())
        return replace(hot, log_psi=log_psi, weights=weights, stats={**hot.stats, **sample_stats(weights)})


class Heated(AutoregressiveAnsatz):
    """A wave function whose conditionals are those of another to the power of 1 / T, normalised token by token."""

    def __init__(self, ansatz: AutoregressiveAnsatz, temperature: float) -> None:
        super().__init__()
        self.ansatz = ansatz
        self.sector = ansatz.sector
        self.temperature = temperature

    def log_psi(self, determinants: Tensor) -> Tensor:
        tokens = self.to_tokens(determinants)
        log_q = self.conditionals(tokens).gather(-1, tokens[..., None]).squeeze(-1).sum(-1)
        return torch.complex(0.5 * log_q, self.phase(determinants))

    def conditionals(self, tokens: Tensor) -> Tensor:
        return self._heated(self.ansatz.conditionals(tokens))

    def phase(self, determinants: Tensor) -> Tensor:
        return self.ansatz.phase(determinants)

    def to_tokens(self, determinants: Tensor) -> Tensor:
        return self.ansatz.to_tokens(determinants)

    def to_determinants(self, tokens: Tensor) -> Tensor:
        return self.ansatz.to_determinants(tokens)

    def begin(self) -> Any:
        return self.ansatz.begin()

    def log_conditionals(self, state: Any) -> Tensor:
        return self._heated(self.ansatz.log_conditionals(state))

    def advance(self, state: Any, parents: Tensor, tokens: Tensor) -> Any:
        return self.ansatz.advance(state, parents, tokens)

    def join(self, states: list[Any]) -> Any | None:
        return self.ansatz.join(states)

    def cache_bytes(self, depth: int) -> int:
        return self.ansatz.cache_bytes(depth)

    def _heated(self, log_conditionals: Tensor) -> Tensor:
        return torch.log_softmax(log_conditionals / self.temperature, dim=-1)
