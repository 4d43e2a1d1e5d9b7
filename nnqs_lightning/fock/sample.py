"""A weighted set of determinants: what samplers give and what energies are made of."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class SampleBatch:
    """Unique determinants held by this rank, with the weights of the estimate that they belong to.

    No determinant occurs twice, on this rank or on another. A rank may hold none.
    """

    determinants: Tensor
    """int64 [N, 2, W]; where the sector has a spin parity, the representatives of its combinations."""
    log_psi: Tensor
    """complex128 [N]: ½ log p + iφ at the parameters of the draw, p normalised over the sector."""
    weights: Tensor
    """float64 [N]: estimator weights of ⟨·⟩_p; they sum to one over the ranks together."""
    counts: Tensor | None = None
    """int64 [N]: walkers on each determinant, 0 where its weight is exact; None where the sampler has no walkers."""
    n_walkers: int = 0
    """Walkers over all ranks; 0 where the sampler has none."""
    step: int = 0
    """Optimiser step whose parameters drew it."""
    stats: dict[str, float] = field(default_factory=dict)
    """``sampling/quantity`` figures for the log."""

    def __len__(self) -> int:
        return self.determinants.shape[0]

    def to(self, device: torch.device | str) -> SampleBatch:
        """The same batch with its tensors on ``device``."""
        counts = None if self.counts is None else self.counts.to(device)
        return SampleBatch(
            determinants=self.determinants.to(device),
            log_psi=self.log_psi.to(device),
            weights=self.weights.to(device),
            counts=counts,
            n_walkers=self.n_walkers,
            step=self.step,
            stats=dict(self.stats),
        )
