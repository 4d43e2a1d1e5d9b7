"""Statistics of studies against enumeration, closed forms and planted truths."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from nnqs_lightning.errors import UserError
from nnqs_lightning.study.statistics import (
    bootstrap_weights,
    compare,
    friedman_p,
    holm,
    intervals,
    mean_ranks,
    seed_spread,
    sign_flip_p,
)


def noise(n_entries: int, n_strata: int, n_seeds: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n_entries, n_strata, n_seeds))


def test_every_resample_is_an_average() -> None:
    weights = bootstrap_weights(3, 5, seed=0, n_resamples=100)
    np.testing.assert_allclose(weights.sum(axis=(1, 2)), 1.0)
    np.testing.assert_allclose(weights.sum(axis=2), 1 / 3)


@pytest.mark.parametrize("n_seeds", [2, 3, 5])
def test_the_spread_of_resampled_means_is_the_standard_error(n_seeds: int) -> None:
    values = noise(1, 4, n_seeds)[0]
    means = np.einsum("sr,bsr->b", values, bootstrap_weights(4, n_seeds, seed=1, n_resamples=100_000))
    expected = (values.var(axis=1, ddof=1) / n_seeds).sum() / 4**2
    assert means.var() == pytest.approx(expected, rel=0.03)


def test_intervals_cover_the_truth_about_as_often_as_they_claim() -> None:
    # 400 entries of true mean zero with their own noise each, 12 strata of 5 seeds as in the shipped study.
    rng = np.random.default_rng(3)
    covered = [interval.low <= 0 <= interval.high for interval in intervals(rng.normal(size=(400, 12, 5)))]
    assert 0.90 < np.mean(covered) < 0.98


def test_one_seed_has_no_spread() -> None:
    with pytest.raises(UserError, match="raise seeds"):
        intervals(noise(2, 3, 1))


@pytest.mark.parametrize("n", [3, 5, 8])
def test_the_sign_flip_test_equals_enumeration(n: int) -> None:
    differences = np.random.default_rng(n).normal(0.5, size=n)
    means = [abs(np.mean(differences * signs)) for signs in product([-1, 1], repeat=n)]
    expected = np.mean(np.array(means) >= abs(differences.mean()) - 1e-12)
    assert sign_flip_p(differences) == pytest.approx(expected, abs=1e-12)


def test_identical_entries_do_not_differ() -> None:
    assert sign_flip_p(np.zeros(5)) == 1.0


def test_holm_corrects_as_in_a_worked_example() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def test_ranks_follow_the_errors_and_average_to_the_middle() -> None:
    log_errors = np.arange(4.0)[:, None, None] + 0.01 * noise(4, 3, 5)
    ranks = mean_ranks(log_errors)
    assert [rank.value for rank in ranks] == [1, 2, 3, 4]
    assert np.mean([rank.value for rank in mean_ranks(noise(4, 3, 5))]) == pytest.approx(2.5)


def test_a_planted_difference_is_found_and_noise_is_not() -> None:
    log_errors = noise(6, 12, 5, seed=2)
    log_errors[4] -= 1.0
    rows = {row.entry: row for row in compare({"all": log_errors}, list("abcdef"), "a")}
    assert {name for name, row in rows.items() if row.verdict != "within noise"} == {"e"}
    assert rows["e"].verdict == "better"
    assert rows["e"].ratio.low < 0.1 < rows["e"].ratio.high
    assert friedman_p(log_errors) < 1e-3 < friedman_p(noise(6, 12, 5))


def test_shared_noise_of_a_seed_cancels_in_pairs() -> None:
    shared = 5 * noise(1, 3, 5)
    log_errors = np.concatenate([shared, shared + 0.1 + 0.01 * noise(1, 3, 5, seed=1)])
    (row,) = compare({"all": log_errors}, ["base", "other"], "base")
    assert row.ratio.high - row.ratio.low < 0.05
    assert row.verdict == "worse"


def test_few_false_claims_without_any_difference() -> None:
    claims = 0
    for seed in range(20):
        rows = compare({"all": noise(5, 2, 4, seed)}, list("abcde"), "a")
        claims += any(row.verdict != "within noise" for row in rows)
    assert claims <= 3


def test_seed_spread_is_the_typical_factor() -> None:
    log_errors = 0.3 * noise(10, 10, 50)
    assert seed_spread(log_errors) == pytest.approx(10**0.3, rel=0.02)
