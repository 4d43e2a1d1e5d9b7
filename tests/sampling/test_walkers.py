"""Laws of the samplers with walkers, against distributions enumerated from tables.

Seeds are fixed; with fresh ones each statistical assertion would fail once in 1e4.
"""

import numpy as np
import pytest
import torch
from scipy import stats
from table_ansatz import TableAnsatz

from nnqs_lightning.ansatz.base import Ansatz
from nnqs_lightning.errors import UserError
from nnqs_lightning.fock import SampleBatch, Sector
from nnqs_lightning.sampling import MultinomialSampler, SumOverStates, SystematicSampler

SAMPLERS = [SystematicSampler, MultinomialSampler]
SECTORS = {"H2": Sector(2, 1, 1), "LiH": Sector(6, 2, 2), "H2O": Sector(7, 5, 5)}


@pytest.fixture(scope="module", params=SECTORS)
def ansatz(request):
    return TableAnsatz(SECTORS[request.param])


def exact(ansatz) -> dict[tuple, float]:
    batch = SumOverStates().sample(ansatz, seed=0, step=0)
    return {tuple(d.flatten().tolist()): w for d, w in zip(batch.determinants, batch.weights.tolist(), strict=True)}


def as_counts(batch: SampleBatch) -> dict[tuple, int]:
    keys = [tuple(d.flatten().tolist()) for d in batch.determinants]
    assert len(set(keys)) == len(keys)
    return dict(zip(keys, batch.counts.tolist(), strict=True))


def binned_chisquare(observed: np.ndarray, p: np.ndarray, total: int) -> float:
    """Rare outcomes share one bin, so that every expectation is at least 5."""
    rare = p * total < 5
    expected = np.append(p[~rare], p[rare].sum()) * total
    seen = np.append(observed[~rare], observed[rare].sum())
    keep = expected > 0.5
    assert seen[~keep].sum() <= 5
    return stats.chisquare(seen[keep], expected[keep] * seen[keep].sum() / expected[keep].sum()).pvalue


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_single_walkers_follow_the_exact_distribution(sampler, ansatz):
    p = exact(ansatz)
    index = {key: i for i, key in enumerate(p)}
    observed = np.zeros(len(p))
    for step in range(600):
        (key,) = as_counts(sampler(1).sample(ansatz, seed=5, step=step))
        observed[index[key]] += 1
    assert binned_chisquare(observed, np.array(list(p.values())), 600) > 1e-4


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_counts_are_unbiased(sampler, ansatz):
    """z-scores of the mean counts of 200 draws; the bound is for the largest of all of them."""
    p = exact(ansatz)
    draws = [as_counts(sampler(37).sample(ansatz, seed=1, step=step)) for step in range(200)]
    counts = np.array([[draw.get(key, 0) for key in p] for draw in draws])
    probabilities = np.array(list(p.values()))
    deviation = counts.mean(0) - 37 * probabilities
    # Systematic counts vary less than multinomial ones, whose variance bounds both.
    bound = np.sqrt(37 * probabilities * (1 - probabilities) / 200)
    seen = probabilities * 37 * 200 > 20
    assert np.abs(deviation[seen] / bound[seen]).max() < stats.norm.isf(0.5e-4 / seen.sum())


def test_multinomial_counts_of_one_draw_pass_chi_square(ansatz):
    p = exact(ansatz)
    counts = as_counts(MultinomialSampler(10**6).sample(ansatz, seed=2, step=0))
    assert binned_chisquare(np.array([counts.get(key, 0) for key in p]), np.array(list(p.values())), 10**6) > 1e-4


def test_multinomial_counts_have_multinomial_variance(ansatz):
    p = exact(ansatz)
    key = max(p, key=lambda k: p[k] * (1 - p[k]))
    counts = [as_counts(MultinomialSampler(1000).sample(ansatz, seed=3, step=s)).get(key, 0) for s in range(500)]
    ratio = np.var(counts, ddof=1) / (1000 * p[key] * (1 - p[key]))
    low, high = stats.chi2.ppf([0.5e-4, 1 - 0.5e-4], 499) / 499
    assert low < ratio < high


def test_systematic_counts_stay_within_a_walker_for_each_level(ansatz):
    """Each level adds an error below one walker, so n_orb bounds the distance from n |ψ|²."""
    p = exact(ansatz)
    for n in (100, 10**9, 10**15, 2**62 - 1):
        counts = as_counts(SystematicSampler(n).sample(ansatz, seed=4, step=0))
        # n p itself is rounded: |ψ|² is a float64, good to 1e-15.
        assert all(abs(counts.get(key, 0) - n * p[key]) <= ansatz.n_steps + 1e-14 * n for key in p)


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("n_walkers", [1, 100, 10**9, 10**15])
def test_every_walker_arrives(sampler, n_walkers, ansatz):
    batch = sampler(n_walkers).sample(ansatz, seed=6, step=0)
    assert sum(batch.counts.tolist()) == n_walkers == batch.n_walkers
    assert (batch.counts > 0).all()
    assert float(batch.weights.sum()) == pytest.approx(1, abs=1e-14)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_impossible_determinants_are_never_drawn(sampler):
    ansatz = TableAnsatz(Sector(6, 3, 2), zero=0.4)
    possible = exact(ansatz)
    assert len(possible) < ansatz.sector.size
    for step in range(50):
        assert set(as_counts(sampler(10**12).sample(ansatz, seed=0, step=step))) <= set(possible)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_draws_depend_on_seed_step_and_stream_alone(sampler, ansatz):
    reference = sampler(500).sample(ansatz, seed=1, step=2, stream=3)
    for options in ({"chunk_size": 1}, {"chunk_size": 7}, {"max_cache_bytes": 10**5}):
        again = sampler(500, **options).sample(ansatz, seed=1, step=2, stream=3)
        assert torch.equal(again.determinants, reference.determinants)
        assert torch.equal(again.counts, reference.counts)
        torch.testing.assert_close(again.log_psi, reference.log_psi, rtol=1e-14, atol=1e-14)
    draws = [
        as_counts(sampler(500).sample(ansatz, seed=seed, step=step, stream=stream))
        for seed, step, stream in ((1, 2, 3), (0, 2, 3), (1, 0, 3), (1, 2, 0))
    ]
    assert all(draws[0] != draw for draw in draws[1:])


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_log_psi_is_that_of_the_ansatz(sampler, ansatz):
    batch = sampler(1000).sample(ansatz, seed=1, step=0)
    torch.testing.assert_close(batch.log_psi, ansatz.log_psi(batch.determinants).detach(), rtol=1e-12, atol=1e-12)
    assert not batch.log_psi.is_inference()
    assert not batch.determinants.is_inference()


@pytest.mark.parametrize("n_walkers", [0, -3, 1.5, 1e30, float("nan"), float("inf")])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_impossible_numbers_of_walkers_are_refused_with_the_range(sampler, n_walkers):
    with pytest.raises(UserError, match=f"data.sampler.n_walkers is .* from 1 to {sampler.walker_limit}"):
        sampler(n_walkers)


def test_bad_bounds_are_refused_with_the_number_that_works():
    with pytest.raises(UserError, match=r"target_unique is 226, .* set it to 225 or less"):
        SystematicSampler(target_unique=226).sample(TableAnsatz(Sector(6, 2, 2)), seed=0, step=0)
    with pytest.raises(UserError, match="target_unique is 0"):
        SystematicSampler(target_unique=0)
    with pytest.raises(UserError, match="chunk_size is 0"):
        SystematicSampler(chunk_size=0)
    with pytest.raises(UserError, match="min_walkers is 1000"):
        SystematicSampler(min_walkers=1000, max_walkers=10)
    # Depths 1 … 5 hold 10, 20, … 50 bytes.
    path = TableAnsatz(Sector(6, 2, 2), row_bytes=10)
    with pytest.raises(UserError, match=r"max_cache_bytes is 149, .* set it to 150 or more"):
        SystematicSampler(max_cache_bytes=149).sample(path, seed=0, step=0)
    SystematicSampler(max_cache_bytes=150).sample(path, seed=0, step=0)


def test_an_ansatz_without_conditionals_is_refused():
    class Bare(Ansatz):
        sector = Sector(2, 1, 1)

        def log_psi(self, determinants):
            raise NotImplementedError

    with pytest.raises(UserError, match=r"Bare.* has none: choose nnqs_lightning.sampling.SumOverStates"):
        SystematicSampler().sample(Bare(), seed=0, step=0)


def test_nan_conditionals_are_an_error():
    ansatz = TableAnsatz(Sector(4, 2, 2))
    ansatz.tables[2][:] = float("nan")
    with pytest.raises(UserError, match="NaN at orbital 2"):
        SystematicSampler().sample(ansatz, seed=0, step=0)


def run_control(sampler, ansatz, steps):
    unique = []
    for step in range(steps):
        batch = sampler.sample(ansatz, seed=0, step=step)
        sampler.observe(batch)
        unique.append(len(batch))
    return unique


@pytest.mark.parametrize("n_walkers", [100, 10**12])
def test_walkers_adapt_until_the_target_is_held(n_walkers):
    ansatz = TableAnsatz(SECTORS["H2O"], spread=3.0)
    unique = run_control(SystematicSampler(n_walkers, target_unique=150), ansatz, 25)
    assert all(abs(number - 150) <= 25 for number in unique[-8:])


def test_control_keeps_to_its_floor_and_ceiling():
    ansatz = TableAnsatz(SECTORS["H2O"])
    high = SystematicSampler(1000, target_unique=440, max_walkers=2000)
    run_control(high, ansatz, 5)
    assert high.n_walkers == 2000
    low = SystematicSampler(1000, target_unique=1, min_walkers=500)
    run_control(low, ansatz, 5)
    assert low.n_walkers == 500


def test_control_continues_from_its_saved_state():
    ansatz = TableAnsatz(SECTORS["H2O"], spread=3.0)
    whole = SystematicSampler(100, target_unique=150)
    numbers = run_control(whole, ansatz, 3)
    resumed = SystematicSampler(100, target_unique=150)
    resumed.load_state_dict(whole.state_dict())
    assert resumed.n_walkers == whole.n_walkers != 100
    assert run_control(resumed, ansatz, 3) == run_control(whole, ansatz, 3) != numbers


def test_a_fixed_number_of_walkers_is_that_of_the_configuration_also_after_a_resume():
    resumed = SystematicSampler(5000)
    resumed.load_state_dict(SystematicSampler(100, target_unique=3).state_dict())
    assert resumed.n_walkers == 5000
    resumed.load_state_dict({})
    assert resumed.n_walkers == 5000


def test_a_collapsed_sample_is_a_warning_once():
    ansatz = TableAnsatz(Sector(6, 3, 3), spread=60.0)
    sampler = SystematicSampler(1000)
    assert ansatz.sector.size == 400
    with pytest.warns(UserWarning, match="unique determinants carry all 1000 walkers") as caught:
        run_control(sampler, ansatz, 3)
    assert len(caught) == 1


def test_a_small_sector_is_not_a_collapsed_sample(recwarn):
    run_control(SystematicSampler(1000), TableAnsatz(SECTORS["H2"]), 2)
    assert not recwarn.list
