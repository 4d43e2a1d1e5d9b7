"""A core of important determinants that is summed over, beside a fresh sample of the rest."""

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


class CoreSetSampler(Sampler):
    """The likeliest determinants seen so far, carried from step to step, and a fresh sample of all others.

    ⟨f⟩ = Σ_core p f + (1 − p_core) ⟨f⟩_outside: the core is summed over with its present probabilities, which are known
    because ψ is normalised, and what another sampler draws outside of it stands for the rest (stratified sampling with
    one stratum enumerated; Owen, *Monte Carlo theory*, chapter 8). The estimate is as honest as that sampler's; only
    the noise of the core is gone. Within the sampled set, no determinant of the core is lost by chance.

    Before the first step the core is empty. After each step it is made anew of the likeliest determinants of core and
    sample. A target for the number of unique determinants of the other sampler counts the core as well.

    Args:
        sampler: draws from |ψ|²; null for a :class:`SystematicSampler`.
        core_size: largest number of determinants in the core.
        chunk_size: number of determinants evaluated together.

    Raises:
        UserError: core_size or chunk_size below 1.
    """

    def __init__(self, sampler: Sampler | None = None, core_size: int = 512, chunk_size: int = 4096) -> None:
        for name, value in (("core_size", core_size), ("chunk_size", chunk_size)):
            if value < 1:
                raise UserError(f"data.sampler.{name} is {value}: set it to 1 or more")
        self.sampler = sampler or SystematicSampler()
        self.core_size = core_size
        self.chunk_size = chunk_size
        self._core: Tensor | None = None
        """int64 [K, 2, W], the same on every rank."""

    def sample(self, ansatz: Ansatz, *, seed: int, step: int, stream: int = 0) -> SampleBatch:
        """See :meth:`Sampler.sample`; ``counts`` are zero in the core, whose weights carry no noise.

        Raises:
            UserError: the ansatz is not normalised.
        """
        if not isinstance(ansatz, AutoregressiveAnsatz):
            raise UserError(
                f"data.sampler is CoreSetSampler, which needs probabilities, and model.ansatz "
                f"({type(ansatz).__name__}) has none: choose an AutoregressiveAnsatz or another sampler"
            )
        fresh = self.sampler.sample(ansatz, seed=seed, step=step, stream=stream)
        if self._core is None:
            return fresh
        outside = self._outside(fresh)
        core = self._own_core(ansatz, fresh)
        p_core, drawn = distributed.all_reduce_sum(torch.stack([core.weights.sum(), outside.weights.sum()])).tolist()
        if drawn > 0:
            outside.weights *= max(1 - p_core, 0.0) / drawn
        else:
            core.weights /= p_core
        weights = torch.cat([core.weights, outside.weights])
        stats = {**fresh.stats, **sample_stats(weights), "sampling/core_probability": p_core}
        columns = [
            torch.cat([core.determinants, outside.determinants]),
            torch.view_as_real(torch.cat([core.log_psi, outside.log_psi])),
            weights,
        ]
        if outside.counts is not None:
            columns.append(torch.cat([outside.counts.new_zeros(len(core)), outside.counts]))
        determinants, log_psi, weights, *counts = distributed.level_rows(columns)
        return replace(
            fresh,
            determinants=determinants,
            log_psi=torch.view_as_complex(log_psi),
            weights=weights,
            counts=counts[0] if counts else None,
            stats=stats,
        )

    def observe(self, batch: SampleBatch) -> None:
        """Take the likeliest determinants of the batch as the next core."""
        self.sampler.observe(batch)
        mine = _likeliest(batch.determinants, batch.log_psi.real, self.core_size)
        determinants, _ = distributed.all_gather_rows(batch.determinants[mine])
        log_psi, _ = distributed.all_gather_rows(batch.log_psi[mine])
        self._core = determinants[_likeliest(determinants, log_psi.real, self.core_size)]

    def state_dict(self) -> dict[str, Any]:
        """The core and what the other sampler keeps."""
        return {"core": None if self._core is None else self._core.cpu(), "sampler": self.sampler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`."""
        self._core = state.get("core")
        self.sampler.load_state_dict(state.get("sampler", {}))

    def _outside(self, fresh: SampleBatch) -> SampleBatch:
        """What was drawn beside the core."""
        from nnqs_lightning.fock.lookup import DeterminantTable

        assert self._core is not None
        new = DeterminantTable(self._core).find(fresh.determinants) < 0
        counts = None if fresh.counts is None else fresh.counts[new]
        return SampleBatch(fresh.determinants[new], fresh.log_psi[new], fresh.weights[new], counts)

    def _own_core(self, ansatz: AutoregressiveAnsatz, fresh: SampleBatch) -> SampleBatch:
        """This rank's share of the core with its probabilities."""
        assert self._core is not None
        rank, world, size = distributed.rank(), distributed.world_size(), len(self._core)
        determinants = self._core[size * rank // world : size * (rank + 1) // world].to(fresh.determinants.device)
        log_psi = ansatz.evaluate(determinants, self.chunk_size)
        return SampleBatch(determinants, log_psi, (2 * log_psi.real).exp())


def _likeliest(determinants: Tensor, log_psi: Tensor, size: int) -> Tensor:
    """Positions of the ``size`` largest amplitudes; equal ones by their words, whichever ranks hold them."""
    order = torch.arange(len(determinants), device=determinants.device)
    for word in determinants.flatten(1).unbind(1):
        order = order[torch.sort(word[order], stable=True).indices]
    return order[torch.sort(log_psi[order], descending=True, stable=True).indices][:size]
