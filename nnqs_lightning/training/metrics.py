"""torchmetrics of a weighted sample of local energies, synchronised over ranks."""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics import Metric

from nnqs_lightning.fock import SampleBatch
from nnqs_lightning.vmc import LocalEnergies


class EnergyMetrics(Metric):
    """Energy, variance, error bar and number of unique determinants over one or several draws.

    The same formulas as :func:`nnqs_lightning.vmc.estimators.estimate_energy`, accumulated: with weights w that sum to
    one in each draw and n walkers on a determinant, E = Σ w E_loc / Σ w, Var = Σ w |E_loc − E|² / Σ w, and the squared
    error bar is Σ (w² / n) |E_loc − E|² / (Σ w)². It is zero for samplers without walkers, which enumerate.
    """

    full_state_update = False
    moments: Tensor
    """[3]: Σ w, Σ w Re E_loc, Σ w |E_loc|²"""
    spread: Tensor
    """[3]: the same with w² / n in place of w"""
    unique: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("moments", torch.zeros(3, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("spread", torch.zeros(3, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("unique", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, energies: LocalEnergies, sample: SampleBatch) -> None:
        """Add this rank's share of a draw and its local energies."""
        # A determinant of weight zero counts for nothing, whatever its local energy.
        live = energies.weights > 0
        weights, values = energies.weights[live], energies.values[live]
        powers = torch.stack([torch.ones_like(weights), values.real, values.abs().square()])
        self.moments += powers @ weights
        if sample.counts is not None:
            counts = sample.counts[live]
            self.spread += powers @ torch.where(counts > 0, weights.square() / counts.clamp(min=1), 0.0)
        self.unique += len(sample)

    def compute(self) -> dict[str, Tensor]:
        """``mean`` and ``error_bar`` in hartree, ``variance`` in hartree², ``unique`` per draw."""
        total, first, second = self.moments
        mean = first / total
        return {
            "mean": mean,
            "variance": (second / total - mean * mean).clamp_min(0.0),
            "error_bar": _about(self.spread, mean).sqrt() / total,
            "unique": (self.unique / total).round(),
        }


def _about(moments: Tensor, mean: Tensor) -> Tensor:
    """Σ s |E − mean|² from Σ s, Σ s Re E, Σ s |E|²."""
    return (moments[2] - 2 * mean * moments[1] + mean * mean * moments[0]).clamp_min(0.0)
