"""Every scheme's formula written out by hand, one element at a time, in plain float64 arithmetic.

Each oracle gives what a scheme adds to an embedding, how it turns one query or key, and the bias of one score;
a missing entry stands for the identity.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from nnqs_lightning.nn.positional import PositionalScheme

Array = NDArray[np.float64]


@dataclass
class Oracle:
    """Formulas of one scheme; ``n`` is a place, ``i`` and ``j`` index the places of a sequence."""

    embed: Callable[[PositionalScheme, int, int], Array] | None = None
    """(scheme, n, token) → signal [d_model]"""
    rotate: Callable[[PositionalScheme, Array, int, bool, int], Array] | None = None
    """(scheme, vector [d_head], n, whether a key, head) → vector"""
    bias: Callable[[PositionalScheme, int, int, int, list[int], Array, Array], float] | None = None
    """(scheme, head, i, j, places, rotated q [T, d_head], rotated k [T, d_head]) → bias of score (i, j), j ≤ i"""


def orbital_tables(n_orb: int) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Pairs and features of a made-up system, for contexts."""
    generator = torch.Generator().manual_seed(n_orb)
    names = ("exchange", "coulomb", "one_electron", "mutual_information")
    raw = torch.randn(len(names), n_orb, n_orb, generator=generator, dtype=torch.float64) ** 3
    pairs = dict(zip(names, raw + raw.transpose(1, 2), strict=True))
    features = {
        "index": torch.randperm(n_orb, generator=generator),
        "energy": 5 * torch.randn(n_orb, generator=generator, dtype=torch.float64),
        "level": torch.randn(n_orb, generator=generator, dtype=torch.float64),
        "occupation": torch.randint(0, 2, (n_orb, 2), generator=generator).double(),
    }
    return pairs, features


def weights(scheme: PositionalScheme, name: str) -> Array:
    """A parameter or buffer as an array."""
    return scheme.state_dict()[name].double().numpy()


def learned_row(scheme: PositionalScheme, n: int, token: int) -> Array:
    return weights(scheme, "table.weight")[n - scheme.context.start_position]


def sinusoid(scheme: PositionalScheme, n: int, token: int) -> Array:
    d = scheme.context.d_model
    return np.array([(math.sin if c % 2 == 0 else math.cos)(n / 10000 ** ((c - c % 2) / d)) for c in range(d)])


def rotary(base: float = 10000.0, n_rotated: int = 8, stretch: float = 1.0):
    """Complex multiplication of each pair by e^{iω n}."""

    def rotate(scheme: PositionalScheme, vector: Array, n: int, is_key: bool, head: int) -> Array:
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


def spin_rows(scheme: PositionalScheme, n: int, token: int) -> Array:
    row = n - scheme.context.start_position
    signal = weights(scheme, "place.weight")[row].copy()
    if token in (1, 3):
        signal += weights(scheme, "alpha.weight")[row]
    if token in (2, 3):
        signal += weights(scheme, "beta.weight")[row]
    return signal


def rotary_learned(scheme: PositionalScheme, vector: Array, n: int, is_key: bool, head: int) -> Array:
    omegas = np.exp(weights(scheme, "log_frequencies")[head])
    pairs = (vector[0::2] + 1j * vector[1::2]) * np.exp(1j * omegas * n)
    return np.stack([pairs.real, pairs.imag], axis=-1).reshape(-1)


def xpos(gamma: float, decay_length: float):
    def rotate(scheme: PositionalScheme, vector: Array, n: int, is_key: bool, head: int) -> Array:
        turned = rotary()(scheme, vector, n, is_key, head)
        for c in range(len(vector)):
            zeta = ((c - c % 2) / len(vector) + gamma) / (1 + gamma)
            turned[c] *= zeta ** ((-n if is_key else n) / decay_length)
        return turned

    return rotate


def kerple_log(scheme, head, i, j, places, q, k) -> float:
    r, s = math.exp(weights(scheme, "log_strength")[head]), math.exp(weights(scheme, "shape")[head])
    return -r * math.log(1 + s * (places[i] - places[j]))


def kerple_power(scheme, head, i, j, places, q, k) -> float:
    r, s = math.exp(weights(scheme, "log_strength")[head]), weights(scheme, "shape")[head]
    return -r * float(places[i] - places[j]) ** (2 / (1 + math.exp(-s)))


def fire(scheme, head, i, j, places, q, k) -> float:
    def psi(x: float) -> float:
        return math.log(abs(float(weights(scheme, "c"))) * x + 1)

    count = places[i] - scheme.context.start_position
    ratio = psi(places[i] - places[j]) / psi(max(count, abs(float(weights(scheme, "threshold")))))
    hidden = weights(scheme, "network.0.weight")[:, 0] * ratio + weights(scheme, "network.0.bias")
    return weights(scheme, "network.2.weight")[head] @ np.maximum(hidden, 0)


def cope(scheme, head, i, j, places, q, k) -> float:
    rows, root = weights(scheme, "rows"), math.sqrt(len(q[i]))
    count = sum(1 / (1 + math.exp(-(q[i] @ k[m]) / root)) for m in range(j, i + 1))
    count = min(count, len(rows) - 1)
    below, above = rows[math.floor(count)], rows[math.ceil(count)]
    share = count - math.floor(count)
    return q[i] @ ((1 - share) * below + share * above) / root


def pair_bias(sources: list[str], f: Callable[[float], float]):
    """The i-th query predicts orbital i; the key of place 0 is the start token, of place j it carries orbital j − 1."""

    def bias(scheme, head, i, j, places, q, k) -> float:
        row = weights(scheme, "weights")[head]
        if j == 0:
            return row[0]
        total = 0.0
        for source, weight in zip(sources, row[1:], strict=True):
            matrix = orbital_tables(scheme.context.n_positions)[0][source].abs().numpy()
            strongest = max(matrix[p, r] for p, r in np.ndindex(matrix.shape) if p != r)
            total += weight * f(matrix[i, j - 1] / strongest)
        return total

    return bias


def log_share(share: float) -> float:
    return math.log(1 + share / 1e-3) / math.log(1 + 1 / 1e-3)


def fiedler_relative(source: str):
    """A table over |v_p − v_q| on the span 0 … L − 1, v from numpy's eigenvectors; linear between its entries."""

    def bias(scheme, head, i, j, places, q, k) -> float:
        if j == 0:
            return weights(scheme, "start")[head]
        matrix = orbital_tables(scheme.context.n_positions)[0][source].abs().numpy()
        np.fill_diagonal(matrix, 0)
        vector = np.linalg.eigh(np.diag(matrix.sum(0)) - matrix)[1][:, 1]
        distance = abs(vector[i] - vector[j - 1]) / np.ptp(vector) * (len(vector) - 1)
        table = weights(scheme, "form.table.weight")[:, head]
        return float(np.interp(distance, np.arange(len(table)), table))

    return bias


def strong_pair_alibi(source: str, threshold: float):
    """−slope times the number of steps, found by widening circles of neighbours."""

    def bias(scheme, head, i, j, places, q, k) -> float:
        if j == 0:
            return weights(scheme, "start")[head]
        n_orb = scheme.context.n_positions
        matrix = orbital_tables(n_orb)[0][source].abs().numpy()
        np.fill_diagonal(matrix, 0)
        joined = matrix >= threshold * matrix.max()
        steps, reached = 0, {j - 1}
        while i not in reached and steps < n_orb:
            reached |= {p for p in range(n_orb) for r in reached if joined[p, r]}
            steps += 1
        return -(2 ** (-8 * (head + 1) / scheme.context.n_heads)) * steps

    return bias


def orbital_features(scheme: PositionalScheme, n: int, token: int) -> Array:
    features = orbital_tables(scheme.context.n_positions)[1]
    predicted = n - scheme.context.start_position

    def columns(orbital: int) -> list[float]:
        return [math.asinh(v) for v in [features["level"][orbital].item(), *features["occupation"][orbital].tolist()]]

    def mlp(name: str, inputs: list[float]) -> Array:
        hidden = weights(scheme, f"{name}.0.weight") @ np.array(inputs) + weights(scheme, f"{name}.0.bias")
        hidden = np.array([v * 0.5 * (1 + math.erf(v / math.sqrt(2))) for v in hidden])
        return weights(scheme, f"{name}.2.weight") @ hidden + weights(scheme, f"{name}.2.bias")

    carried = [0.0, *columns(predicted - 1)] if predicted else [1.0, 0.0, 0.0, 0.0]
    return mlp("of_predicted", columns(predicted)) + mlp("of_carried", carried)


def lattice_signal(scheme: PositionalScheme, n: int, token: int) -> Array:
    site = orbital_tables(scheme.context.n_positions)[1]["index"][n - scheme.context.start_position].item()
    row, column = divmod(site, scheme.n_columns)
    return weights(scheme, "row.weight")[row] + weights(scheme, "column.weight")[column]


def lattice_displacement(scheme, head, i, j, places, q, k) -> float:
    table = weights(scheme, "displacement.weight")[:, head]
    if j == 0:
        return table[-1]
    index = orbital_tables(scheme.context.n_positions)[1]["index"].tolist()
    (r, c), (r0, c0) = divmod(index[i], scheme.n_columns), divmod(index[j - 1], scheme.n_columns)
    n_rows, n_columns = len(index) // scheme.n_columns, scheme.n_columns
    if scheme.periodic:
        return table[:-1].reshape(n_rows, n_columns)[(r - r0) % n_rows, (c - c0) % n_columns]
    return table[:-1].reshape(2 * n_rows - 1, 2 * n_columns - 1)[r - r0 + n_rows - 1, c - c0 + n_columns - 1]
