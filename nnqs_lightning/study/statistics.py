"""Which differences between the entries of one axis are larger than the noise of the seeds.

Data come as ``log_errors`` [A, S, R]: log10 of the error of A entries in S strata (a stratum is one combination of the
other axes) with R seeds each. Within a stratum and a seed, a *block*, all entries share the seed, so they are compared
in pairs; blocks are independent of each other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nnqs_lightning.errors import UserError

Array = NDArray[np.float64]

N_RESAMPLES = 10_000
CONFIDENCE = 0.95
SIGNIFICANCE = 0.05


@dataclass(frozen=True)
class Interval:
    """An estimate with its bootstrap confidence interval (95 %)."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Comparison:
    """One entry against the baseline within one scope."""

    entry: str
    scope: str
    ratio: Interval
    """Error of the entry divided by that of the baseline, geometric mean over blocks."""
    n_pairs: int
    p_value: float
    """Of the sign-flip test, two-sided."""
    p_adjusted: float
    """After Holm's correction over the comparisons of the scope."""

    @property
    def verdict(self) -> str:
        """``better`` or ``worse`` where the difference exceeds the noise, else ``within noise``."""
        if self.p_adjusted >= SIGNIFICANCE:
            return "within noise"
        return "better" if self.ratio.value < 1 else "worse"


def bootstrap_weights(n_strata: int, n_seeds: int, seed: int, n_resamples: int = N_RESAMPLES) -> Array:
    """Weights of the blocks in each resample, [B, S, R]; they sum to one.

    Each stratum draws R − 1 of its R seeds with replacement: with so few, R draws would understate the variance by
    (R − 1)/R, and R − 1 are exact (Rao and Wu 1988, J. Am. Stat. Assoc. 83, 231). All entries get the same draws.

    Raises:
        UserError: fewer than two seeds.
    """
    if n_seeds < 2:
        raise UserError(f"{n_seeds} seed for each cell leaves no spread to compare with: raise seeds to at least 2")
    rng = np.random.default_rng(seed)
    counts = rng.multinomial(n_seeds - 1, np.full(n_seeds, 1 / n_seeds), size=(n_resamples, n_strata))
    return counts / ((n_seeds - 1) * n_strata)


def intervals(values: Array, seed: int = 0) -> list[Interval]:
    """Mean over blocks of each entry, with its percentile interval; ``values`` [A, S, R]."""
    _, n_strata, n_seeds = values.shape
    weights = bootstrap_weights(n_strata, n_seeds, seed)
    means = np.einsum("asr,bsr->ab", values, weights)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(means, [tail, 1 - tail], axis=1)
    centre = values.mean(axis=(1, 2))
    return [Interval(float(c), float(a), float(b)) for c, a, b in zip(centre, low, high, strict=True)]


def mean_ranks(log_errors: Array, seed: int = 0) -> list[Interval]:
    """Mean rank of each entry (1 has the smallest error), ties shared, ranked within each block."""
    from scipy.stats import rankdata

    return intervals(rankdata(log_errors, axis=0), seed)


def friedman_p(log_errors: Array) -> float:
    """P-value of the hypothesis that all entries are alike (Friedman's test on the blocks); nan for two entries."""
    from scipy.stats import friedmanchisquare

    if len(log_errors) < 3:
        return float("nan")
    return float(friedmanchisquare(*log_errors.reshape(len(log_errors), -1)).pvalue)


def sign_flip_p(differences: Array, seed: int = 0) -> float:
    """Two-sided P-value of a zero mean: how often random signs give a mean at least as far from zero.

    All 2^n signs where n ≤ 14, twenty thousand random ones beyond. The smallest possible value is 2^(1−n): five pairs
    alone can never fall below 0.0625.
    """
    from scipy.stats import permutation_test

    if not np.any(differences):
        return 1.0
    result = permutation_test(
        (differences,),
        lambda x, axis: x.mean(axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=20_000,
        batch=10_000,
        rng=np.random.default_rng(seed),
    )
    return float(result.pvalue)


def holm(p_values: list[float]) -> list[float]:
    """P-values adjusted so that all claims together are false as rarely as one (Holm 1979, Scand. J. Stat. 6, 65)."""
    order = np.argsort(p_values)
    factors = len(p_values) - np.arange(len(p_values))
    adjusted = np.minimum(np.maximum.accumulate(np.asarray(p_values)[order] * factors), 1.0)
    return [float(p) for p in adjusted[np.argsort(order)]]


def compare(scopes: dict[str, Array], entries: list[str], baseline: str) -> list[Comparison]:
    """Every entry against the baseline in every scope, corrected within each scope.

    Args:
        scopes: log10 errors [A, S, R] by name of the scope.
        entries: names along the first axis.
        baseline: one of ``entries``.
    """
    return [
        row for scope, log_errors in scopes.items() for row in _compare_within(scope, log_errors, entries, baseline)
    ]


def _compare_within(scope: str, log_errors: Array, entries: list[str], baseline: str) -> list[Comparison]:
    differences = log_errors - log_errors[entries.index(baseline)]
    rivals = [index for index, entry in enumerate(entries) if entry != baseline]
    ratios = intervals(differences)
    p_values = [sign_flip_p(differences[index].ravel()) for index in rivals]
    return [
        Comparison(entries[index], scope, _to_ratio(ratios[index]), differences[index].size, p, adjusted)
        for index, p, adjusted in zip(rivals, p_values, holm(p_values), strict=True)
    ]


def seed_spread(log_errors: Array) -> float:
    """Typical factor between two seeds of one cell: 10 to the pooled standard deviation of log10 errors."""
    return float(10 ** np.sqrt(log_errors.var(axis=2, ddof=1).mean()))


def _to_ratio(interval: Interval) -> Interval:
    return Interval(10**interval.value, 10**interval.low, 10**interval.high)
