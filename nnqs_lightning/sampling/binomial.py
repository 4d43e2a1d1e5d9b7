"""Binomial and multinomial numbers from counter-based uniforms, compiled.

Inversion where n min(p, 1 − p) < 10, else transformed rejection with squeeze (BTRS: Hörmann, J. Stat. Comput. Simul.
46, 101, 1993), both exact algorithms. The acceptance test takes the binomial probability in Loader's saddle-point form
(C. Loader, 2000), whose relative error stays near 1e-15 √n / σ + 1e-14 where a difference of log-gammas would lose all
digits: at 2^53 walkers the law is right to about 1e-8 in total variation.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from nnqs_lightning.sampling.random import GAMMA, MULTIPLIERS, TOKENS

_GAMMA = np.uint64(GAMMA)
_M1, _M2 = np.uint64(MULTIPLIERS[0]), np.uint64(MULTIPLIERS[1])
_S30, _S27, _S31, _S12 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(12)
_FIRST = np.uint64(TOKENS + 1)
_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


@njit(cache=True)
def multinomial(counts: NDArray[np.int64], p: NDArray[np.float64], hashes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Share out ``counts`` [M] with probabilities ``p`` [M, K]; row m uses the stream of ``hashes[m]`` alone."""
    rows, n_children = p.shape
    children = np.zeros((rows, n_children), np.int64)
    stream = np.empty(1, np.uint64)
    for row in range(rows):
        stream[0] = np.uint64(hashes[row]) + _FIRST * _GAMMA
        left = counts[row]
        for k in range(n_children):
            if left == 0:
                break
            # Summed from the end, so that the last child that can be taken has a share of exactly one.
            tail = 0.0
            for j in range(n_children - 1 - k):
                tail += p[row, n_children - 1 - j]
            share = p[row, k] / (tail + p[row, k]) if p[row, k] > 0 else 0.0
            taken = _binomial(left, share, stream)
            children[row, k] = taken
            left -= taken
    return children


@njit(cache=True)
def binomial(n: NDArray[np.int64], p: NDArray[np.float64], hashes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Binomial numbers, elementwise over [M]."""
    numbers = np.empty(len(n), np.int64)
    stream = np.empty(1, np.uint64)
    for i in range(len(n)):
        stream[0] = np.uint64(hashes[i]) + _FIRST * _GAMMA
        numbers[i] = _binomial(n[i], p[i], stream)
    return numbers


@njit(cache=True)
def _uniform(stream: NDArray[np.uint64]) -> float:
    x = stream[0]
    stream[0] += _GAMMA
    x = (x ^ (x >> _S30)) * _M1
    x = (x ^ (x >> _S27)) * _M2
    x = x ^ (x >> _S31)
    return (float(x >> _S12) + 0.5) * 2.0**-52


@njit(cache=True)
def _binomial(n: int, p: float, stream: NDArray[np.uint64]) -> int:
    if p <= 0.0 or n == 0:
        return 0
    if p >= 1.0:
        return n
    if p > 0.5:
        return n - _binomial_small_p(n, 1.0 - p, stream)
    return _binomial_small_p(n, p, stream)


@njit(cache=True)
def _binomial_small_p(n: int, p: float, stream: NDArray[np.uint64]) -> int:
    if p <= 0.0:
        return 0
    if n * p < 10.0:
        return _inversion(n, p, stream)
    return _transformed_rejection(n, p, stream)


@njit(cache=True)
def _inversion(n: int, p: float, stream: NDArray[np.uint64]) -> int:
    u = _uniform(stream)
    probability = math.exp(n * math.log1p(-p))
    odds = p / (1.0 - p)
    k = 0
    # Beyond 200 the tail of a mean below 10 is under 1e-180; the bound stops a walk on rounding errors of the sum.
    while u > probability and k < min(n, 200):
        u -= probability
        probability *= odds * (n - k) / (k + 1.0)
        k += 1
    return k


@njit(cache=True)
def _transformed_rejection(n: int, p: float, stream: NDArray[np.uint64]) -> int:
    total = float(n)
    spread = math.sqrt(total * p * (1.0 - p))
    b = 1.15 + 2.53 * spread
    a = -0.0873 + 0.0248 * b + 0.01 * p
    c = total * p + 0.5
    v_r = 0.92 - 4.2 / b
    alpha = (2.83 + 5.1 / b) * spread
    log_mode = _log_probability(float(math.floor((total + 1.0) * p)), total, p)
    while True:
        u = _uniform(stream) - 0.5
        v = _uniform(stream)
        us = 0.5 - abs(u)
        k = math.floor((2.0 * a / us + b) * u + c)
        if us >= 0.07 and v <= v_r:
            return int(k)
        if k < 0 or k > n:
            continue
        if math.log(v * alpha / (a / (us * us) + b)) <= _log_probability(float(k), total, p) - log_mode:
            return int(k)


@njit(cache=True)
def _log_probability(k: float, n: float, p: float) -> float:
    if k <= 0:
        return n * math.log1p(-p)
    if k >= n:
        return n * math.log(p)
    return (
        _stirling_error(n)
        - _stirling_error(k)
        - _stirling_error(n - k)
        - _deviance(k, n * p)
        - _deviance(n - k, n * (1.0 - p))
        + 0.5 * math.log(n / (k * (n - k)))
        - _HALF_LOG_2PI
    )


@njit(cache=True)
def _stirling_error(n: float) -> float:
    """log n! − log(√(2πn) (n/e)^n)."""
    if n < 16:
        return math.lgamma(n + 1.0) - (n + 0.5) * math.log(n) + n - _HALF_LOG_2PI
    n2 = n * n
    return (1 / 12 - (1 / 360 - (1 / 1260 - 1 / (1680 * n2)) / n2) / n2) / n


@njit(cache=True)
def _deviance(x: float, mean: float) -> float:
    """x log(x / mean) + mean − x without cancellation."""
    if abs(x - mean) >= 0.1 * (x + mean):
        return x * math.log(x / mean) + mean - x
    v = (x - mean) / (x + mean)
    total = (x - mean) * v
    term = 2.0 * x * v
    for j in range(1, 1000):
        term *= v * v
        following = total + term / (2 * j + 1)
        if following == total:
            break
        total = following
    return total
