"""Every determinant that H connects to a given one, or a screened and unbiased choice of them."""

# Kernels take what numba infers.
# mypy: disallow-untyped-defs=False

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nnqs_lightning.fock.compiled import jit
from nnqs_lightning.fock.lookup import hash_row
from nnqs_lightning.hamiltonian.slater_condon import (
    ONE,
    count_below,
    diagonal_element,
    empty_orbitals,
    occupied_orbitals,
    pair_sign,
    rank_sign,
    single_element,
)


class Excitations(NamedTuple):
    """Scratch for the single excitations of one spin string."""

    occupied: NDArray[np.int64]
    empty: NDArray[np.int64]
    ranks: NDArray[np.int64]
    strings: NDArray[np.uint64]
    """[n_singles, W]: the excited strings, empty orbitals running fastest."""
    signs: NDArray[np.float64]
    """[n_singles]"""
    counts: NDArray[np.int64]
    """[2]: numbers of occupied and of empty orbitals."""


@jit
def excitations(n_orb, n_words):
    """Scratch for any string of ``n_orb`` orbitals."""
    most = (n_orb * n_orb >> 2) + 1
    return Excitations(
        np.empty(n_orb, dtype=np.int64),
        np.empty(n_orb, dtype=np.int64),
        np.empty(n_orb, dtype=np.int64),
        np.empty((most, n_words), dtype=np.uint64),
        np.empty(most),
        np.empty(2, dtype=np.int64),
    )


@jit
def excite(string, singles):
    """Fill in the single excitations of ``string``."""
    n_orb = singles.occupied.shape[0]
    singles.counts[0] = occupied_orbitals(string, singles.occupied)
    singles.counts[1] = empty_orbitals(string, n_orb, singles.empty)
    count_below(string, singles.ranks)
    m = 0
    for k in range(singles.counts[0]):
        i = singles.occupied[k]
        for l in range(singles.counts[1]):
            a = singles.empty[l]
            for w in range(string.shape[0]):
                singles.strings[m, w] = string[w]
            singles.strings[m, i >> 6] ^= ONE << np.uint64(i & 63)
            singles.strings[m, a >> 6] ^= ONE << np.uint64(a & 63)
            singles.signs[m] = rank_sign(singles.ranks, i, a)
            m += 1


@jit
def connect(determinant, tables, threshold, alpha, beta, states, elements):
    """Write the determinants D' with |⟨D'|H|D⟩| > threshold and their elements; return how many.

    The diagonal comes first and is always kept. ``states`` is [n_connected, 2, W], ``elements`` [n_connected];
    ``alpha`` and ``beta`` are :func:`excitations`.
    """
    excite(determinant[0], alpha)
    excite(determinant[1], beta)
    states[0] = determinant
    elements[0] = diagonal_element(alpha.occupied, alpha.counts[0], beta.occupied, beta.counts[0], tables)
    count = append_one_spin(determinant, 0, alpha, beta, tables, threshold, states, elements, 1)
    count = append_one_spin(determinant, 1, beta, alpha, tables, threshold, states, elements, count)
    return append_two_spins(alpha, beta, tables, threshold, states, elements, count)


@jit
def append_one_spin(determinant, spin, singles, other, tables, threshold, states, elements, count):
    """Append the singles and doubles of one spin string; return the new number of states."""
    n_words = determinant.shape[1]
    n_occupied, n_empty = singles.counts
    for k in range(n_occupied):
        i = singles.occupied[k]
        for l in range(n_empty):
            a = singles.empty[l]
            m = k * n_empty + l
            value = single_element(i, a, singles.occupied, n_occupied, other.occupied, other.counts[0], tables)
            if abs(value) > threshold:
                for w in range(n_words):
                    states[count, spin, w] = singles.strings[m, w]
                    states[count, 1 - spin, w] = determinant[1 - spin, w]
                elements[count] = singles.signs[m] * value
                count += 1
            for p in range(k):
                j = singles.occupied[p]
                row = (i * (i - 1) >> 1) + j
                for q in range(l):
                    b = singles.empty[q]
                    value = tables.same_spin[row, (a * (a - 1) >> 1) + b]
                    if abs(value) > threshold:
                        for w in range(n_words):
                            states[count, spin, w] = singles.strings[m, w]
                            states[count, 1 - spin, w] = determinant[1 - spin, w]
                        states[count, spin, j >> 6] ^= ONE << np.uint64(j & 63)
                        states[count, spin, b >> 6] ^= ONE << np.uint64(b & 63)
                        elements[count] = pair_sign(singles.ranks, j, b, i, a) * value
                        count += 1
    return count


@jit
def append_two_spins(alpha, beta, tables, threshold, states, elements, count):
    """Append the doubles with one electron of each spin; return the new number of states."""
    n_words = alpha.strings.shape[1]
    for k in range(alpha.counts[0]):
        for l in range(alpha.counts[1]):
            m = k * alpha.counts[1] + l
            integrals = tables.eri[alpha.occupied[k], alpha.empty[l]]
            n = 0
            for p in range(beta.counts[0]):
                for q in range(beta.counts[1]):
                    value = integrals[beta.occupied[p], beta.empty[q]]
                    if abs(value) > threshold:
                        for w in range(n_words):
                            states[count, 0, w] = alpha.strings[m, w]
                            states[count, 1, w] = beta.strings[n, w]
                        elements[count] = alpha.signs[m] * beta.signs[n] * value
                        count += 1
                    n += 1
    return count


@jit
def connect_rows(start, stop, determinants, tables, threshold, states, elements, counts):
    """:func:`connect` for a block of determinants into ``states`` [N, n_connected, 2, W] and so on."""
    n_orb, n_words = tables.h1e.shape[0], determinants.shape[2]
    alpha, beta = excitations(n_orb, n_words), excitations(n_orb, n_words)
    for row in range(start, stop):
        counts[row] = connect(determinants[row], tables, threshold, alpha, beta, states[row], elements[row])


@jit
def draw_rows(start, stop, determinants, tables, threshold, n_draws, seed, states, elements, n_kept, counts):
    """Large elements of a block of rows of H, and ``n_draws`` of the others that stand for all of them.

    Kept are the diagonal and |H| > threshold. Each draw takes D' with probability |H_DD'| / W, W the sum over what was
    not kept, and gets the element sign(H_DD') W / n_draws: the sum with any ψ is unbiased. The draws come last in a
    row, after ``n_kept``. They depend on ``seed`` and the determinant. ``states``: [N, n_connected + n_draws, …].
    """
    n_orb, n_words = tables.h1e.shape[0], determinants.shape[2]
    alpha, beta = excitations(n_orb, n_words), excitations(n_orb, n_words)
    width = elements.shape[1]
    rows_of_words = determinants.reshape(determinants.shape[0], 2 * n_words)
    all_states = np.empty((width, 2, n_words), dtype=np.uint64)
    all_elements = np.empty(width)
    small = np.empty(width, dtype=np.int64)
    running = np.empty(width)
    for row in range(start, stop):
        n_all = connect(determinants[row], tables, 0.0, alpha, beta, all_states, all_elements)
        count, n_small, weight = 0, 0, 0.0
        for k in range(n_all):
            if k == 0 or abs(all_elements[k]) > threshold:
                states[row, count] = all_states[k]
                elements[row, count] = all_elements[k]
                count += 1
            else:
                weight += abs(all_elements[k])
                small[n_small] = k
                running[n_small] = weight
                n_small += 1
        n_kept[row] = count
        key = hash_row(rows_of_words, row) ^ seed
        for draw in range(n_draws if n_small else 0):
            place = np.searchsorted(running[:n_small], weight * uniform(key, draw), side="right")
            k = small[min(place, n_small - 1)]
            states[row, count] = all_states[k]
            elements[row, count] = np.sign(all_elements[k]) * weight / n_draws
            count += 1
        counts[row] = count


@jit
def uniform(key, counter):
    """A number in [0, 1) for each (key, counter): SplitMix64 started at ``key``."""
    mixed = key + np.uint64(counter + 1) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return (mixed >> np.uint64(11)) * (1.0 / 9007199254740992.0)
