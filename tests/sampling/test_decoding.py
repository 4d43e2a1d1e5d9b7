"""Samplers on the transformer: its cache stays within the bound and changes nothing."""

import numpy as np
import pytest
import torch
from scipy import stats

from nnqs_lightning.ansatz import TransformerAnsatz
from nnqs_lightning.chem import MolecularIntegrals
from nnqs_lightning.errors import UserError
from nnqs_lightning.nn.cache import KeyValuePool
from nnqs_lightning.sampling import GumbelTopKSampler, MultinomialSampler, SumOverStates, SystematicSampler

SAMPLERS = [SystematicSampler(10_000), MultinomialSampler(10_000), GumbelTopKSampler(1500)]


def build(n_orb: int, n_alpha: int, n_beta: int) -> TransformerAnsatz:
    torch.manual_seed(2)
    integrals = MolecularIntegrals(
        h1e=np.diag(np.arange(float(n_orb))), eri=np.zeros((n_orb,) * 4), e_core=0.0, n_alpha=n_alpha, n_beta=n_beta
    )
    ansatz = TransformerAnsatz(integrals, d_model=16, n_heads=2, n_layers=2).double()
    # Far from flat, as after training.
    torch.nn.init.normal_(ansatz.decoder.head.weight, std=0.2)
    return ansatz


@pytest.fixture(scope="module")
def ansatz():
    return build(9, 4, 3)


def bounded(sampler, **options):
    size = sampler.n_unique if isinstance(sampler, GumbelTopKSampler) else sampler.n_walkers
    return type(sampler)(size, **options)


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda sampler: type(sampler).__name__)
def test_the_cache_stays_within_its_bound_and_the_set_is_the_same(sampler, ansatz, monkeypatch):
    held = []
    take = KeyValuePool.take

    def recorded(pool, n_rows):
        block = take(pool, n_rows)
        held.append(pool.rows.numel() * pool.rows.element_size())
        return block

    monkeypatch.setattr(KeyValuePool, "take", recorded)
    reference = sampler.sample(ansatz, seed=0, step=0)
    free = max(held)
    for options in ({"max_cache_bytes": free // 2}, {"max_cache_bytes": free // 20}, {"chunk_size": 9}):
        held.clear()
        batch = bounded(sampler, **options).sample(ansatz, seed=0, step=0)
        assert max(held) <= options.get("max_cache_bytes", free)
        assert torch.equal(batch.determinants, reference.determinants)
        torch.testing.assert_close(batch.weights, reference.weights, rtol=1e-10, atol=0)
        torch.testing.assert_close(batch.log_psi, reference.log_psi, rtol=1e-10, atol=1e-10)


def test_a_bound_below_one_path_names_the_bytes_that_work(ansatz):
    path = sum(ansatz.cache_bytes(depth) for depth in range(1, ansatz.n_steps))
    with pytest.raises(UserError, match=f"set it to {path} or more"):
        SystematicSampler(10, max_cache_bytes=path - 1).sample(ansatz, seed=0, step=0)
    batch = SystematicSampler(10, max_cache_bytes=path).sample(ansatz, seed=0, step=0)
    assert int(batch.counts.sum()) == 10


@pytest.mark.parametrize("sector", [(2, 1, 1), (6, 2, 2), (7, 5, 5)], ids=["H2", "LiH", "H2O"])
def test_walkers_on_three_molecules_follow_the_exact_distribution(sector):
    """Multinomial: chi-square, a false alarm once in 1e4. Systematic: counts within a walker for each orbital."""
    ansatz = build(*sector)
    exact = SumOverStates().sample(ansatz, seed=0, step=0)
    p = dict(zip(map(bytes, exact.determinants.numpy()), exact.weights.tolist(), strict=True))
    counts = []
    for sampler in (MultinomialSampler(20_000), SystematicSampler(20_000)):
        batch = sampler.sample(ansatz, seed=4, step=0)
        torch.testing.assert_close(batch.log_psi, ansatz.log_psi(batch.determinants).detach(), rtol=1e-9, atol=1e-9)
        drawn = dict(zip(map(bytes, batch.determinants.numpy()), batch.counts.tolist(), strict=True))
        counts.append(np.array([drawn.get(key, 0) for key in p]))
    expected = 20_000 * np.array(list(p.values()))
    rare = expected < 5
    seen, due = (np.append(x[~rare], x[rare].sum()) for x in (counts[0], expected))
    assert stats.chisquare(seen[due > 0], due[due > 0] * 20_000 / due.sum()).pvalue > 1e-4
    assert np.abs(counts[1] - expected).max() <= sector[0]


def test_samples_can_be_trained_on(ansatz):
    """Nothing in a batch is an inference tensor, which autograd refuses."""
    batch = SystematicSampler(100).sample(ansatz, seed=0, step=0)
    (ansatz.log_psi(batch.determinants).real * batch.weights).sum().backward()
    assert ansatz.decoder.head.weight.grad is not None
    ansatz.zero_grad()
