"""The exact sum over a sector, behind the type of a sampler."""

from __future__ import annotations

import torch

from nnqs_lightning import distributed
from nnqs_lightning.ansatz.base import Ansatz
from nnqs_lightning.errors import UserError
from nnqs_lightning.fock import SampleBatch
from nnqs_lightning.sampling import tree
from nnqs_lightning.sampling.base import Sampler
from nnqs_lightning.sampling.stats import sample_stats


class SumOverStates(Sampler):
    """Every determinant of the sector with weight |ψ|² / Σ|ψ|²: no noise, no randomness, any ansatz.

    Determinants on which ψ vanishes exactly are left out. Ranks share the sector in blocks of like size.

    Args:
        max_determinants: largest sector that is enumerated.
        chunk_size: number of determinants evaluated together.
    """

    def __init__(self, max_determinants: int = 1_000_000, chunk_size: int = 4096) -> None:
        self.max_determinants = max_determinants
        self.chunk_size = chunk_size

    def sample(self, ansatz: Ansatz, *, seed: int, step: int, stream: int = 0) -> SampleBatch:
        """See :meth:`Sampler.sample`; (seed, step, stream) change nothing.

        Raises:
            UserError: the sector is larger than ``max_determinants``; ψ is zero or NaN everywhere.
        """
        size = ansatz.sector.size
        if size > self.max_determinants:
            raise UserError(
                f"data.sampler is SumOverStates and the sector has {size} determinants, more than "
                f"data.sampler.max_determinants ({self.max_determinants}): raise it to {size} or choose another sampler"
            )
        rank, world = distributed.rank(), distributed.world_size()
        mine = slice(size * rank // world, size * (rank + 1) // world)
        determinants = ansatz.sector.determinants()[mine].to(tree.device_of(ansatz))
        log_psi = ansatz.evaluate(determinants, self.chunk_size)
        alive = log_psi.real > -torch.inf
        determinants, log_psi = determinants[alive], log_psi[alive]
        log_norm = self._log_norm(log_psi.real)
        log_psi = log_psi - 0.5 * log_norm
        weights = (2 * log_psi.real).exp()
        return SampleBatch(determinants, log_psi, weights, step=step, stats=sample_stats(weights))

    def _log_norm(self, log_amplitudes: torch.Tensor) -> torch.Tensor:
        """log Σ|ψ|² over all ranks."""
        # A rank without determinants still takes part.
        floor = log_amplitudes.new_full((1,), -torch.inf)
        largest = distributed.all_reduce_max(torch.cat([log_amplitudes, floor]).max())
        if not bool(largest.isfinite()):
            raise UserError("ψ is zero or not a number on the whole sector: check model.ansatz and its parameters")
        total = distributed.all_reduce_sum((2 * (log_amplitudes - largest)).exp().sum())
        return 2 * largest + total.log()
