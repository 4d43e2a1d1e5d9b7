"""Every scheme's formula written out by hand, one element at a time, in plain float64 arithmetic.

Each oracle gives what a scheme adds to an embedding, how it turns one query or key, and the bias of one score;
a missing entry stands for the identity.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nnqs_lightning.nn.positional import PositionalScheme

Array = NDArray[np.float64]


@dataclass
class Oracle:
    """Formulas of one scheme; ``n`` is a place, ``i`` and ``j`` index the places of a sequence."""

    embed: Callable[[PositionalScheme, int], Array] | None = None
    """(scheme, n) → signal [d_model]"""
    rotate: Callable[[PositionalScheme, Array, int, bool], Array] | None = None
    """(scheme, vector [d_head], n, whether a key) → vector"""
    bias: Callable[[PositionalScheme, int, int, int, list[int], Array, Array], float] | None = None
    """(scheme, head, i, j, places, rotated q [T, d_head], rotated k [T, d_head]) → bias of score (i, j), j ≤ i"""


def weights(scheme: PositionalScheme, name: str) -> Array:
    """A parameter or buffer as an array."""
    return scheme.state_dict()[name].double().numpy()


def learned_row(scheme: PositionalScheme, n: int) -> Array:
    return weights(scheme, "table.weight")[n - scheme.context.start_position]


def sinusoid(scheme: PositionalScheme, n: int) -> Array:
    d = scheme.context.d_model
    return np.array([(math.sin if c % 2 == 0 else math.cos)(n / 10000 ** ((c - c % 2) / d)) for c in range(d)])


def rotary(base: float = 10000.0, n_rotated: int = 8, stretch: float = 1.0):
    """Complex multiplication of each pair by e^{iω n}."""

    def rotate(scheme: PositionalScheme, vector: Array, n: int, is_key: bool) -> Array:
        turned = vector.copy()
        for c in range(0, n_rotated, 2):
            omega = 1 / base ** (c / n_rotated)
            z = complex(vector[c], vector[c + 1]) * np.exp(1j * omega * n / stretch)
            turned[c], turned[c + 1] = z.real, z.imag
        return turned

    return rotate


def alibi(scheme, head, i, j, places, q, k) -> float:
    n_heads = scheme.context.n_heads
    assert n_heads & (n_heads - 1) == 0
    return -(2 ** (-8 * (head + 1) / n_heads)) * (places[i] - places[j])


def t5_bucket(distance: int, n_buckets: int, max_distance: int) -> int:
    exact = n_buckets // 2
    if distance < exact:
        return distance
    share = math.log(distance / exact) / math.log(max_distance / exact)
    return min(n_buckets - 1, exact + int(share * (n_buckets - exact)))


def t5(n_buckets: int, max_distance: int):
    def bias(scheme, head, i, j, places, q, k) -> float:
        return weights(scheme, "table.weight")[t5_bucket(places[i] - places[j], n_buckets, max_distance), head]

    return bias


def relative(max_distance: int):
    def bias(scheme, head, i, j, places, q, k) -> float:
        return weights(scheme, "table.weight")[min(places[i] - places[j], max_distance), head]

    return bias
