"""Laws of the core set, against distributions enumerated from tables."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from table_ansatz import TableAnsatz

from nnqs_lightning.errors import UserError
from nnqs_lightning.fock import SampleBatch, Sector
from nnqs_lightning.sampling import CoreSetSampler, GumbelTopKSampler, MultinomialSampler, SumOverStates
from nnqs_lightning.vmc.base import LocalEnergies
from nnqs_lightning.vmc.estimators import estimate_energy

N_WALKERS = 60


@pytest.fixture(scope="module")
def ansatz() -> TableAnsatz:
    return TableAnsatz(Sector(6, 2, 2))


def quantity(determinants: torch.Tensor) -> torch.Tensor:
    """Something to average: any number for each determinant."""
    return torch.sin(determinants.flatten(1).double() @ torch.tensor([0.7, 1.3], dtype=torch.float64))


def average(batch: SampleBatch) -> float:
    return float((batch.weights * quantity(batch.determinants)).sum())


def with_core(ansatz: TableAnsatz, core_size: int, inner=None) -> CoreSetSampler:
    """A sampler that has seen a draw of other randomness."""
    sampler = CoreSetSampler(inner or MultinomialSampler(N_WALKERS), core_size)
    sampler.observe(sampler.sample(ansatz, seed=99, step=0))
    return sampler


def test_the_core_is_summed_with_its_probabilities_and_the_rest_shares_what_is_left(ansatz):
    sampler = with_core(ansatz, 10)
    batch = sampler.sample(ansatz, seed=1, step=0)
    assert len(torch.unique(batch.determinants.flatten(1), dim=0)) == len(batch)
    core = batch.counts == 0
    assert core.sum() == 10
    p = (2 * ansatz.log_psi(batch.determinants).real).exp()
    torch.testing.assert_close(batch.log_psi, ansatz.log_psi(batch.determinants))
    torch.testing.assert_close(batch.weights[core], p[core])
    assert batch.weights.sum().item() == pytest.approx(1, abs=1e-12)
    assert batch.stats["sampling/core_probability"] == pytest.approx(p[core].sum().item())
    outside = batch.counts[~core].double()
    torch.testing.assert_close(batch.weights[~core], (1 - p[core].sum()) * outside / outside.sum())
    drawn = MultinomialSampler(N_WALKERS).sample(ansatz, seed=1, step=0)
    kept = {str(d): n for d, n in zip(drawn.determinants.tolist(), drawn.counts.tolist(), strict=True)}
    assert all(
        kept[str(d)] == n for d, n in zip(batch.determinants[~core].tolist(), batch.counts[~core].tolist(), strict=True)
    )


def test_estimates_are_unbiased_with_less_noise_and_an_error_bar_that_covers_it(ansatz):
    exact = average(SumOverStates().sample(ansatz, seed=0, step=0))
    sampler, plain = with_core(ansatz, 20), MultinomialSampler(N_WALKERS)
    found, bars, noisy = [], [], []
    for step in range(80):
        batch = sampler.sample(ansatz, seed=7, step=step)
        found.append(average(batch))
        values = quantity(batch.determinants).to(torch.complex128)
        bars.append(estimate_energy(LocalEnergies(values, batch.weights, False), batch).error)
        noisy.append(average(plain.sample(ansatz, seed=7, step=step)))
    assert abs(np.mean(found) - exact) < 3.5 * np.std(found) / 80**0.5
    assert np.std(found) < 0.7 * np.std(noisy)
    assert 0.9 < np.sqrt(np.mean(np.square(bars))) / np.std(found) < 1.6


def test_the_next_core_holds_the_likeliest_of_core_and_sample(ansatz):
    sampler = with_core(ansatz, 12)
    batch = sampler.sample(ansatz, seed=1, step=1)
    sampler.observe(batch)
    expected = batch.determinants[batch.log_psi.real.argsort(descending=True)[:12]]
    assert torch.equal(sampler.state_dict()["core"], expected)


def test_a_core_of_everything_leaves_no_noise(ansatz):
    sampler = with_core(ansatz, 225, SumOverStates())
    batch = sampler.sample(ansatz, seed=3, step=0)
    exact = SumOverStates().sample(ansatz, seed=0, step=0)
    assert average(batch) == pytest.approx(average(exact), abs=1e-12)
    assert len(batch) == len(exact)


@pytest.mark.parametrize("inner", [MultinomialSampler(N_WALKERS, target_unique=25), GumbelTopKSampler(25)])
def test_a_resumed_sampler_goes_on_as_it_would_have(ansatz, inner):
    sampler = with_core(ansatz, 12, inner)
    again = CoreSetSampler(type(inner)(25), 12)
    if isinstance(inner, MultinomialSampler):
        again = CoreSetSampler(MultinomialSampler(N_WALKERS, target_unique=25), 12)
    again.load_state_dict(sampler.state_dict())
    batches = [each.sample(ansatz, seed=5, step=3) for each in (sampler, again)]
    assert torch.equal(batches[0].determinants, batches[1].determinants)
    assert torch.equal(batches[0].weights, batches[1].weights)


def test_bad_sizes_are_refused():
    with pytest.raises(UserError, match=r"data\.sampler\.core_size"):
        CoreSetSampler(core_size=0)
