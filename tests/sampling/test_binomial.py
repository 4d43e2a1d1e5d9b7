"""Binomial numbers follow the binomial law, from one walker to 2^53. Each chi-square is a false alarm once in 1e4."""

import mpmath
import numpy as np
import pytest
from scipy import stats

from nnqs_lightning.sampling import random
from nnqs_lightning.sampling.binomial import _log_probability, binomial, multinomial

DRAWS = 40_000


@pytest.fixture(scope="module")
def hashes():
    return np.array([random.draw_key(11, step, 0) for step in range(DRAWS)])


def draw(n, p, hashes):
    return binomial(np.full(len(hashes), n), np.full(len(hashes), p), hashes)


@pytest.mark.parametrize(
    ("n", "p"),
    [(1, 0.3), (5, 0.9), (30, 0.31), (25, 0.5), (60, 0.4), (1000, 0.004), (1000, 0.97), (10**9, 3e-9), (10**6, 5e-5)],
)
def test_small_means_follow_the_exact_law(n, p, hashes):
    numbers = draw(n, p, hashes)
    low, high = stats.binom.ppf([1e-3, 1 - 1e-3], n, p).astype(int)
    edges = np.arange(low, high + 1)
    expected = np.diff(stats.binom.cdf(edges, n, p), prepend=0.0)
    expected = np.append(expected, 1 - expected.sum()) * len(numbers)
    observed = np.bincount(np.searchsorted(edges, numbers), minlength=len(edges) + 1)
    keep = expected > 1e-9
    assert observed[~keep].sum() == 0
    assert stats.chisquare(observed[keep], expected[keep] * observed.sum() / expected[keep].sum()).pvalue > 1e-4


@pytest.mark.parametrize("n", [10**9, 10**12, 10**15, 2**53])
@pytest.mark.parametrize("p", [0.5, 0.013, 1 - 1e-7])
def test_large_means_follow_the_normal_limit(n, p, hashes):
    """At σ ≥ 1e1 with a skewness correction (Cornish–Fisher) the limit is finer than the test."""
    sigma = np.sqrt(n * p * (1 - p))
    z = (draw(n, p, hashes) - n * p + np.array(hashes % 1000) / 1000 - 0.5) / sigma
    skewness = (1 - 2 * p) / sigma
    z = z - skewness * (z**2 - 1) / 6
    bins = stats.norm.ppf(np.arange(1, 64) / 64)
    assert stats.chisquare(np.bincount(np.searchsorted(bins, z), minlength=64)).pvalue > 1e-4


@pytest.mark.parametrize(("n", "p"), [(20, 0.3), (1000, 0.02), (10**6, 0.5), (10**8, 1e-6), (10**15, 0.2)])
def test_log_probability_equals_fifty_digits(n, p):
    mpmath.mp.dps = 50
    exact_p = mpmath.mpf(p)
    mean, sigma = n * p, np.sqrt(n * p * (1 - p))
    for k in {0, n, *np.clip(np.round(mean + sigma * np.arange(-4, 5)), 0, n).astype(int).tolist()}:
        choose = mpmath.loggamma(n + 1) - mpmath.loggamma(k + 1) - mpmath.loggamma(n - k + 1)
        exact = choose + k * mpmath.log(exact_p) + (n - k) * mpmath.log(1 - exact_p)
        assert _log_probability(float(k), float(n), p) == pytest.approx(float(exact), rel=1e-12, abs=1e-7)


def test_certain_and_impossible_outcomes(hashes):
    assert (draw(10**15, 0.0, hashes) == 0).all()
    assert (draw(10**15, 1.0, hashes) == 10**15).all()


def test_children_share_all_walkers_and_the_impossible_get_none(hashes):
    p = np.tile([0.0, 0.7, 0.3, 0.0], (DRAWS, 1))
    for n in (1, 17, 10**15):
        children = multinomial(np.full(DRAWS, n), p, hashes)
        assert (children.sum(1) == n).all()
        assert (children >= 0).all()
        assert (children[:, [0, 3]] == 0).all()


def test_children_are_correlated_as_a_multinomial(hashes):
    p = np.array([0.1, 0.2, 0.3, 0.4])
    children = multinomial(np.full(DRAWS, 50), np.tile(p, (DRAWS, 1)), hashes)
    exact = 50 * (np.diag(p) - np.outer(p, p))
    assert np.abs(children.mean(0) - 50 * p).max() < 4.5 * np.sqrt(exact.max() / DRAWS)
    assert np.abs(np.cov(children.T) - exact).max() < 5 * exact.max() * np.sqrt(2 / DRAWS)
