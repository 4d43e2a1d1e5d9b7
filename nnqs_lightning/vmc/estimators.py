"""The energy of a sample: mean, variance and error bar, in float64 and over all ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from nnqs_lightning.distributed import all_reduce_sum
from nnqs_lightning.fock import SampleBatch
from nnqs_lightning.vmc.base import LocalEnergies


@dataclass(frozen=True)
class EnergyEstimate:
    """What a weighted sample says of the energy; hartree. The same on every rank."""

    mean: float
    """Σ w Re E_loc."""
    variance: float
    """Σ w |E_loc − mean|²; zero for an eigenstate."""
    error: float
    """Standard error of ``mean`` by the spread of independent walkers; zero where the sampler has none."""
    effective_samples: float
    """Number of equally weighted walkers with this error bar; infinite where the sampler has none."""


def estimate_energy(energies: LocalEnergies, sample: SampleBatch) -> EnergyEstimate:
    """Mean, variance and error bar of the energy; collective: every rank calls it.

    A determinant with n_i walkers out of M and weight w_i contributes w_i² |E_i − E|² / n_i to the squared error: the
    delta method for a self-normalised importance estimate (Owen, *Monte Carlo theory*, eq. 9.9), which is
    variance / M where w_i = n_i / M. Determinants without walkers beside others with walkers are summed exactly and add
    no error. Determinants of weight zero count for nothing, whatever their local energy.
    """
    mean = weighted_mean(energies.weights, energies.values).real
    live = energies.weights > 0
    weights = energies.weights[live]
    squares = (energies.values[live] - mean).abs().square()
    sums = [(weights * squares).sum()]
    if sample.counts is not None:
        counts = sample.counts[live]
        spread = torch.where(counts > 0, weights.square() / counts.clamp(min=1), 0.0)
        sums += [(spread * squares).sum(), spread.sum()]
    variance, *walkers = all_reduce_sum(torch.stack(sums)).tolist()
    error_squared, spread_sum = walkers or (0.0, 0.0)
    return EnergyEstimate(
        mean=mean.item(),
        variance=variance,
        error=math.sqrt(error_squared),
        effective_samples=1 / spread_sum if spread_sum > 0 else math.inf,
    )


def weighted_mean(weights: Tensor, values: Tensor) -> Tensor:
    """Σ weights · values over all ranks, skipping weights of zero; a scalar of the dtype of ``values``."""
    live = weights > 0
    return all_reduce_sum((weights[live] * values[live]).sum())
