"""Laws of annealed sampling, against distributions enumerated from tables."""

from __future__ import annotations

import pytest
import torch
from table_ansatz import TableAnsatz

from nnqs_lightning.errors import UserError
from nnqs_lightning.fock import Sector
from nnqs_lightning.sampling import GumbelTopKSampler, MultinomialSampler, SumOverStates, SystematicSampler
from nnqs_lightning.sampling.annealed import AnnealedSampler, Heated


@pytest.fixture(scope="module")
def ansatz() -> TableAnsatz:
    return TableAnsatz(Sector(5, 2, 2))


def test_hot_conditionals_are_normalised_and_flatter(ansatz):
    determinants = ansatz.sector.determinants()
    hot = Heated(ansatz, 3.0)
    p = (2 * ansatz.log_psi(determinants).real).exp()
    q = (2 * hot.log_psi(determinants).real).exp()
    assert q.sum().item() == pytest.approx(1, abs=1e-12)
    assert q.min() > p.min()
    assert q.max() < p.max()
    assert q.square().sum() < p.square().sum()


@pytest.mark.parametrize("inner", [MultinomialSampler(10**9), SystematicSampler(10**9)])
def test_weights_of_a_hot_draw_are_the_probabilities_of_the_state(ansatz, inner):
    batch = AnnealedSampler(inner, steps=10, temperature=2.0).sample(ansatz, seed=1, step=3)
    assert batch.stats["sampling/temperature"] == pytest.approx(1.7)
    p = (2 * ansatz.log_psi(batch.determinants).real).exp()
    torch.testing.assert_close(batch.log_psi, ansatz.log_psi(batch.determinants))
    assert batch.weights.sum().item() == pytest.approx(1, abs=1e-12)
    assert (batch.weights - p).abs().max() < 1e-4
    log_q = 2 * Heated(ansatz, 1.7).log_psi(batch.determinants).real
    assert (batch.counts.double() / 10**9 - log_q.exp()).abs().max() < 1e-4


def test_draws_without_replacement_may_be_hot_too(ansatz):
    sampler = AnnealedSampler(GumbelTopKSampler(40), steps=10, temperature=2.0)
    exact = SumOverStates().sample(ansatz, seed=0, step=0)
    values = torch.cos(exact.determinants.flatten(1).double().sum(1))
    found = []
    for seed in range(100):
        batch = sampler.sample(ansatz, seed=seed, step=0)
        found.append((batch.weights * torch.cos(batch.determinants.flatten(1).double().sum(1))).sum())
    found = torch.stack(found)
    assert abs(found.mean() - (exact.weights * values).sum()) < 4 * found.std() / 10 + 0.01


def test_at_the_end_and_in_evaluations_it_is_the_other_sampler(ansatz):
    inner = SystematicSampler(1000)
    sampler = AnnealedSampler(SystematicSampler(1000), steps=10, temperature=2.0, start_walkers=10)
    for step, stream in ((10, 0), (25, 0), (0, 1)):
        found = sampler.sample(ansatz, seed=2, step=step, stream=stream)
        expected = inner.sample(ansatz, seed=2, step=step, stream=stream)
        assert torch.equal(found.determinants, expected.determinants)
        assert torch.equal(found.counts, expected.counts)
        assert torch.equal(found.weights, expected.weights)


def test_walkers_grow_geometrically_whatever_was_drawn_before(ansatz):
    sampler = AnnealedSampler(SystematicSampler(10_000), steps=4, temperature=1.0, start_walkers=100)
    walkers = [sampler.sample(ansatz, seed=2, step=step).n_walkers for step in (4, 0, 2, 1, 3, 0)]
    assert walkers == [10_000, 100, 1000, 316, 3162, 100]


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"temperature": 0.5}, "temperature"),
        ({"steps": 0}, "steps"),
        ({"start_walkers": 10, "sampler": GumbelTopKSampler(3)}, "start_walkers"),
        ({"start_walkers": 10, "sampler": SystematicSampler(100, target_unique=5)}, "start_walkers"),
        ({"start_walkers": 0}, "start_walkers"),
    ],
)
def test_schedules_that_mean_nothing_are_refused(options, key):
    with pytest.raises(UserError, match=key):
        AnnealedSampler(**options)
