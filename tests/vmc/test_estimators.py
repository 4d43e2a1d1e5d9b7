import math

import pytest
import torch

from nnqs_lightning.fock import SampleBatch
from nnqs_lightning.vmc.base import LocalEnergies
from nnqs_lightning.vmc.estimators import estimate_energy, weighted_mean


def make(values, weights, counts=None):
    n = len(values)
    weights = torch.as_tensor(weights, dtype=torch.float64)
    sample = SampleBatch(torch.zeros(n, 2, 1, dtype=torch.int64), torch.zeros(n, dtype=torch.complex128), weights)
    if counts is not None:
        sample.counts = torch.as_tensor(counts)
        sample.n_walkers = int(sample.counts.sum())
    return LocalEnergies(torch.as_tensor(values, dtype=torch.complex128), weights, True), sample


def test_counts_equal_the_textbook_formulas_over_single_walkers():
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(20, dtype=torch.float64, generator=generator)
    counts = torch.randint(1, 9, (20,), generator=generator)
    walkers = values.repeat_interleave(counts)
    estimate = estimate_energy(*make(values, counts / counts.sum(), counts))
    assert estimate.mean == pytest.approx(walkers.mean().item(), rel=1e-6)
    assert estimate.variance == pytest.approx(walkers.var(correction=0).item(), rel=1e-5)
    assert estimate.error == pytest.approx((walkers.var(correction=0) / len(walkers)).sqrt().item(), rel=1e-5)
    assert estimate.effective_samples == pytest.approx(len(walkers), rel=1e-5)


def test_error_bar_of_importance_weights_covers_the_spread_of_repeated_draws():
    generator = torch.Generator().manual_seed(3)
    p = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
    q = torch.tensor([0.25, 0.25, 0.25, 0.25], dtype=torch.float64)
    values = torch.tensor([-1.0, 0.5, 2.0, 7.0], dtype=torch.float64)
    means, errors = [], []
    for _ in range(400):
        drawn = torch.multinomial(q, 2000, replacement=True, generator=generator)
        counts = torch.bincount(drawn, minlength=4)
        weights = counts * p / q
        estimate = estimate_energy(*make(values, weights / weights.sum(), counts))
        means.append(estimate.mean)
        errors.append(estimate.error)
    means = torch.tensor(means, dtype=torch.float64)
    assert means.mean().item() == pytest.approx((p * values).sum().item(), abs=0.01)
    assert torch.tensor(errors).mean().item() == pytest.approx(means.std().item(), rel=0.1)


def test_variance_survives_a_large_offset():
    values = torch.tensor([1e-5, -1e-5], dtype=torch.float64) - 1e4
    assert estimate_energy(*make(values, [0.5, 0.5])).variance == pytest.approx(1e-10, rel=1e-5)


def test_determinants_without_weight_may_have_any_local_energy():
    estimate = estimate_energy(*make([1.0, complex("nan")], [1.0, 0.0], [5, 0]))
    assert (estimate.mean, estimate.variance, estimate.error) == (1.0, 0.0, 0.0)


def test_no_walkers_no_error_bar():
    estimate = estimate_energy(*make([1.0, 2.0], [0.5, 0.5]))
    assert estimate.error == 0
    assert estimate.effective_samples == math.inf


def test_weighted_mean_of_nothing_is_zero():
    assert weighted_mean(torch.zeros(0, dtype=torch.float64), torch.zeros(0, dtype=torch.complex128)) == 0
