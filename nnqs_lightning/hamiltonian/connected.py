"""Every determinant that H connects to a given one."""

# Kernels take what numba infers.
# mypy: disallow-untyped-defs=False

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nnqs_lightning.fock.compiled import jit
from nnqs_lightning.hamiltonian.slater_condon import (
    ONE,
    count_below,
    diagonal_element,
    empty_orbitals,
    occupied_orbitals,
    pair_sign,
    rank_sign,
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
    field: NDArray[np.float64]
    """[n_occupied, n_orb]: element of the single from each occupied orbital to any other, without its sign."""


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
        np.empty((n_orb, n_orb)),
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
def mean_field(singles, other, tables):
    """Fill in the elements of the singles of one spin, ``other`` being those of the other spin."""
    for k in range(singles.counts[0]):
        i = singles.occupied[k]
        row = singles.field[k]
        row[:] = tables.h1e[i]
        for m in range(singles.counts[0]):
            direct = tables.direct_rows[i, singles.occupied[m]]
            for a in range(row.shape[0]):
                row[a] += direct[a]
        for m in range(other.counts[0]):
            coulomb = tables.coulomb_rows[i, other.occupied[m]]
            for a in range(row.shape[0]):
                row[a] += coulomb[a]


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
    mean_field(singles, other, tables)
    n_occupied, n_empty = singles.counts
    for k in range(n_occupied):
        i = singles.occupied[k]
        for l in range(n_empty):
            a = singles.empty[l]
            m = k * n_empty + l
            value = singles.field[k, a]
            if abs(value) > threshold:
                write_single(determinant, spin, singles.strings, m, states, count)
                elements[count] = singles.signs[m] * value
                count += 1
            for p in range(k):
                j = singles.occupied[p]
                row = (i * (i - 1) >> 1) + j
                for q in range(l):
                    b = singles.empty[q]
                    value = tables.same_spin[row, (a * (a - 1) >> 1) + b]
                    if abs(value) > threshold:
                        write_single(determinant, spin, singles.strings, m, states, count)
                        states[count, spin, j >> 6] ^= ONE << np.uint64(j & 63)
                        states[count, spin, b >> 6] ^= ONE << np.uint64(b & 63)
                        elements[count] = pair_sign(singles.ranks, j, b, i, a) * value
                        count += 1
    return count


@jit
def write_single(determinant, spin, strings, m, states, place):
    """``states[place]`` = ``determinant`` with its string of ``spin`` replaced by ``strings[m]``."""
    for w in range(determinant.shape[1]):
        states[place, spin, w] = strings[m, w]
        states[place, 1 - spin, w] = determinant[1 - spin, w]


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
def connect_rows(start, stop, determinants, tables, threshold, width, states, elements, counts):
    """:func:`connect` for a block of determinants [N, 2, W], what is found packed from ``start · width`` on.

    Args:
        width: most states of one determinant.
        states: [N · width, 2, W], ``elements`` [N · width].
        counts: [N] number of states of each determinant.

    Returns:
        The places that were filled, from and to.
    """
    n_orb, n_words = tables.h1e.shape[0], determinants.shape[2]
    alpha, beta = excitations(n_orb, n_words), excitations(n_orb, n_words)
    end = start * width
    for row in range(start, stop):
        counts[row] = connect(determinants[row], tables, threshold, alpha, beta, states[end:], elements[end:])
        end += counts[row]
    return start * width, end
