"""Laws of sampling without replacement. Seeds are fixed; with fresh ones each chi-square would fail once in 1e4."""

from itertools import combinations

import numpy as np
import pytest
import torch
from scipy import stats
from table_ansatz import TableAnsatz

from nnqs_lightning.errors import UserError
from nnqs_lightning.fock import Sector
from nnqs_lightning.sampling import GumbelTopKSampler, SumOverStates

SECTORS = {"H2": Sector(2, 1, 1), "LiH": Sector(6, 2, 2), "H2O": Sector(7, 5, 5)}


@pytest.fixture(scope="module", params=SECTORS)
def ansatz(request):
    return TableAnsatz(SECTORS[request.param])


def exact(ansatz):
    batch = SumOverStates().sample(ansatz, seed=0, step=0)
    index = {tuple(d.flatten().tolist()): i for i, d in enumerate(batch.determinants)}
    return batch.weights.numpy(), index


def members(batch, index) -> list[int]:
    rows = [index[tuple(d.flatten().tolist())] for d in batch.determinants]
    assert len(set(rows)) == len(rows)
    return rows


def test_a_single_draw_follows_the_exact_distribution(ansatz):
    p, index = exact(ansatz)
    observed = np.zeros(len(p))
    for step in range(600):
        observed[members(GumbelTopKSampler(1).sample(ansatz, seed=8, step=step), index)] += 1
    rare = p * 600 < 5
    seen = np.append(observed[~rare], observed[rare].sum())
    expected = np.append(p[~rare], p[rare].sum() + 1e-9) * 600
    assert stats.chisquare(seen, expected * seen.sum() / expected.sum()).pvalue > 1e-4


def test_pairs_follow_successive_draws_without_replacement():
    """P({i, j}) = p_i p_j / (1 − p_i) + p_j p_i / (1 − p_j)."""
    ansatz = TableAnsatz(Sector(3, 1, 1), spread=1.0)
    p, index = exact(ansatz)
    pairs = list(combinations(range(len(p)), 2))
    expected = np.array([p[i] * p[j] * (1 / (1 - p[i]) + 1 / (1 - p[j])) for i, j in pairs])
    assert expected.sum() == pytest.approx(1)
    observed = np.zeros(len(pairs))
    for step in range(1500):
        observed[
            pairs.index(tuple(sorted(members(GumbelTopKSampler(2).sample(ansatz, seed=9, step=step), index))))
        ] += 1
    rare = expected * 1500 < 5
    seen, due = (np.append(x[~rare], x[rare].sum()) for x in (observed, expected * 1500))
    assert stats.chisquare(seen[due > 0], due[due > 0]).pvalue > 1e-4


@pytest.mark.parametrize("k", [1, 20, 200, 441])
def test_exactly_k_determinants_with_their_log_psi(k):
    ansatz = TableAnsatz(SECTORS["H2O"])
    batch = GumbelTopKSampler(k).sample(ansatz, seed=0, step=0)
    assert len(members(batch, exact(ansatz)[1])) == k
    assert float(batch.weights.sum()) == pytest.approx(1, abs=1e-13)
    assert batch.counts is None
    torch.testing.assert_close(batch.log_psi, ansatz.log_psi(batch.determinants).detach(), rtol=1e-12, atol=1e-12)


def test_estimates_hit_the_expectation_over_the_whole_sector(ansatz):
    """Each mean of 100 draws is compared by a z-test, which fails once in 1e4; the error vanishes when all are drawn.

    With mass M, weighted means R and μ = ⟨f⟩: M R is unbiased, so mean R − μ = −Cov(R, M) (Hartley and Ross, Nature
    174, 270, 1954), at most the product of their standard deviations.
    """
    p, index = exact(ansatz)
    f = np.cos(np.arange(len(p)))
    errors = []
    for k in (len(p) // 4, len(p) // 2, len(p)):
        draws = [GumbelTopKSampler(k).sample(ansatz, seed=2, step=step) for step in range(100)]
        means = np.array([batch.weights.numpy() @ f[members(batch, index)] for batch in draws])
        masses = np.array([batch.stats["sampling/mass"] for batch in draws])
        errors.append(means.std(ddof=1))
        for estimates, exactly, bias in (
            (masses, 1.0, 0.0),
            (masses * means, p @ f, 0.0),
            (means, p @ f, means.std(ddof=1) * masses.std(ddof=1)),
        ):
            margin = stats.norm.isf(0.5e-4) * estimates.std(ddof=1) / 10
            assert abs(estimates.mean() - exactly) < margin + bias + 1e-12
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-12


def test_a_draw_depends_on_neither_chunks_nor_what_was_drawn_before(ansatz):
    k = max(ansatz.sector.size // 3, 1)
    experienced = GumbelTopKSampler(k)
    for step in range(3):
        reference = GumbelTopKSampler(k).sample(ansatz, seed=1, step=step)
        for sampler in (experienced, GumbelTopKSampler(k, chunk_size=1), GumbelTopKSampler(k, chunk_size=9)):
            batch = sampler.sample(ansatz, seed=1, step=step)
            assert torch.equal(batch.determinants, reference.determinants)
            torch.testing.assert_close(batch.weights, reference.weights, rtol=1e-12, atol=0)
            sampler.observe(batch)
    resumed = GumbelTopKSampler(k)
    resumed.load_state_dict(experienced.state_dict())
    assert resumed.state_dict() == experienced.state_dict() != GumbelTopKSampler(k).state_dict()


def test_a_wrong_guess_of_the_threshold_costs_time_only():
    ansatz = TableAnsatz(SECTORS["H2O"])
    reference = GumbelTopKSampler(50).sample(ansatz, seed=1, step=0)
    for floor in (-30.0, 5.0, 100.0):
        sampler = GumbelTopKSampler(50)
        sampler.load_state_dict({"floor": floor})
        assert torch.equal(sampler.sample(ansatz, seed=1, step=0).determinants, reference.determinants)


def test_impossible_determinants_are_never_drawn():
    ansatz = TableAnsatz(Sector(6, 3, 2), zero=0.4)
    p, index = exact(ansatz)
    assert len(p) < ansatz.sector.size
    batch = GumbelTopKSampler(ansatz.sector.size).sample(ansatz, seed=0, step=0)
    assert sorted(members(batch, index)) == list(range(len(p)))
    np.testing.assert_allclose(batch.weights[np.argsort(members(batch, index))], p, rtol=1e-12)


def test_bad_sizes_are_refused_with_the_number_that_works():
    with pytest.raises(UserError, match="n_unique is 0"):
        GumbelTopKSampler(0)
    with pytest.raises(UserError, match=r"n_unique is 226, .* set it to 225 or less"):
        GumbelTopKSampler(226).sample(TableAnsatz(SECTORS["LiH"]), seed=0, step=0)
