"""Slater–Condon rules on packed determinants (Szabo & Ostlund, *Modern Quantum Chemistry*, tables 2.3 and 2.4).

Orbitals are spatial and real. A spin string is a row of W words (uint64); the sign convention is that of
:mod:`nnqs_lightning.fock.determinant`, in which an excitation within one spin string never crosses the other string.
"""

# Kernels take what numba infers.
# mypy: disallow-untyped-defs=False

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nnqs_lightning.chem.integrals import Array, MolecularIntegrals
from nnqs_lightning.fock.compiled import jit, lowest_bit, popcount

ONE = np.uint64(1)


class Tables(NamedTuple):
    """Integrals in the layouts that the kernels read."""

    h1e: Array
    """[n, n]"""
    eri: Array
    """[n, n, n, n], (pq|rs)"""
    coulomb: Array
    """[n, n, n], (pq|rr)"""
    direct: Array
    """[n, n, n], (pq|rr) − (pr|rq)"""
    same_spin: Array
    """[n (n − 1) / 2, …], (ia|jb) − (ib|ja) at row j (j − 1) / 2 + i and column b (b − 1) / 2 + a, i < j, a < b."""
    e_core: float
    coulomb_rows: Array
    """[n, n, n], (pq|rr) at p, r, q: contiguous for sums over r."""
    direct_rows: Array
    """[n, n, n], (pq|rr) − (pr|rq) at p, r, q"""


def tables(integrals: MolecularIntegrals) -> Tables:
    """The integrals of ``integrals``, their symmetries made exact, so that H_DD' = H_D'D to the last bit."""
    p, q = np.tril_indices(integrals.n_orb)
    packed = integrals.eri[p[:, None], q[:, None], p, q]
    packed = np.tril(packed) + np.tril(packed, -1).T
    pair = np.empty((integrals.n_orb, integrals.n_orb), dtype=np.int64)
    pair[p, q] = pair[q, p] = np.arange(len(p))
    eri = packed[pair[:, :, None, None], pair]
    h1e = np.tril(integrals.h1e) + np.tril(integrals.h1e, -1).T
    coulomb = np.ascontiguousarray(np.einsum("pqrr->pqr", eri))
    direct = np.ascontiguousarray(coulomb - np.einsum("prrq->pqr", eri))
    high, low = np.tril_indices(integrals.n_orb, -1)
    i, j, a, b = low[:, None], high[:, None], low[None, :], high[None, :]
    same_spin = eri[i, a, j, b] - eri[i, b, j, a]
    by_rows = [np.ascontiguousarray(array.transpose(0, 2, 1)) for array in (coulomb, direct)]
    return Tables(h1e, eri, coulomb, direct, same_spin, float(integrals.e_core), *by_rows)


@jit
def occupied_orbitals(string, orbitals):
    """Write the occupied orbitals of ``string``, rising, into ``orbitals``; return their number."""
    count = 0
    for w in range(string.shape[0]):
        word = string[w]
        while word:
            orbitals[count] = 64 * w + lowest_bit(word)
            word &= word - ONE
            count += 1
    return count


@jit
def empty_orbitals(string, n_orb, orbitals):
    """Write the empty orbitals of ``string``, rising, into ``orbitals``; return their number."""
    count = 0
    for p in range(n_orb):
        if not (string[p >> 6] >> np.uint64(p & 63)) & ONE:
            orbitals[count] = p
            count += 1
    return count


@jit
def write_excited(source, target, i, a):
    """``target`` = ``source`` with the electron of orbital i moved to a; the two may be one array."""
    for w in range(source.shape[0]):
        target[w] = source[w]
    target[i >> 6] ^= ONE << np.uint64(i & 63)
    target[a >> 6] ^= ONE << np.uint64(a & 63)


@jit
def distance(left, right):
    """Number of electrons that differ between two strings of equal electron number."""
    bits = 0
    for w in range(left.shape[0]):
        bits += popcount(left[w] ^ right[w])
    return bits >> 1


@jit
def n_below(string, p):
    """Number of electrons in orbitals below p."""
    count = 0
    for w in range(p >> 6):
        count += popcount(string[w])
    return count + popcount(string[p >> 6] & ((ONE << np.uint64(p & 63)) - ONE))


@jit
def single_sign(string, i, a):
    """Sign of a†_a a_i on ``string``: the parity of the electrons strictly between i and a."""
    low, high = min(i, a), max(i, a)
    between = n_below(string, high) - n_below(string, low) - (1 if low == i else 0)
    return 1.0 - 2.0 * (between & 1)


@jit
def double_sign(string, i, a, j, b):
    """Sign of a†_b a_j a†_a a_i on ``string``."""
    low, high = min(j, b), max(j, b)
    moved = (low < i < high) ^ (low < a < high)
    sign = single_sign(string, i, a) * single_sign(string, j, b)
    return -sign if moved else sign


@jit
def single_element(i, a, same, n_same, other, n_other, tables):
    """⟨a†_a a_i D|H|D⟩ without its sign; ``same`` and ``other`` are the occupied orbitals of D."""
    value = tables.h1e[i, a]
    for k in range(n_same):
        value += tables.direct[i, a, same[k]]
    for k in range(n_other):
        value += tables.coulomb[i, a, other[k]]
    return value


@jit
def string_energy(occupied, tables):
    """Energy of the electrons of one spin, the other spin and e_core left out."""
    value = 0.0
    for k in range(occupied.shape[0]):
        p = occupied[k]
        value += tables.h1e[p, p]
        for l in range(k):
            value += tables.direct[p, p, occupied[l]]
    return value


@jit
def diagonal_element(alpha, n_alpha, beta, n_beta, tables):
    """⟨D|H|D⟩ from the occupied orbitals of D."""
    value = tables.e_core + string_energy(alpha[:n_alpha], tables) + string_energy(beta[:n_beta], tables)
    for k in range(n_alpha):
        for l in range(n_beta):
            value += tables.coulomb[alpha[k], alpha[k], beta[l]]
    return value


@jit
def moves(source, target, holes, particles):
    """Write the (at most two) orbitals that ``source`` loses and gains on the way to ``target``."""
    n_holes = 0
    n_particles = 0
    for w in range(source.shape[0]):
        lost = source[w] & ~target[w]
        while lost:
            holes[n_holes] = 64 * w + lowest_bit(lost)
            lost &= lost - ONE
            n_holes += 1
        gained = target[w] & ~source[w]
        while gained:
            particles[n_particles] = 64 * w + lowest_bit(gained)
            gained &= gained - ONE
            n_particles += 1


@jit
def same_spin_double(source, target, tables, holes, particles):
    """Element between two strings of one spin at distance two, the other spin's string being equal."""
    moves(source, target, holes, particles)
    i, j, a, b = holes[0], holes[1], particles[0], particles[1]
    value = tables.eri[i, a, j, b] - tables.eri[i, b, j, a]
    return double_sign(source, i, a, j, b) * value


@jit
def count_below(string, ranks):
    """``ranks[p]`` = number of electrons of ``string`` in orbitals below p."""
    electrons = 0
    for p in range(ranks.shape[0]):
        ranks[p] = electrons
        electrons += (string[p >> 6] >> np.uint64(p & 63)) & ONE


@jit
def rank_sign(ranks, i, a):
    """:func:`single_sign` from the ranks of a string; + where an electron stays."""
    between = ranks[a] - ranks[i] - 1 if a > i else ranks[i] - ranks[a]
    return 1.0 - 2.0 * (between & 1)


@jit
def pair_sign(ranks, i, a, j, b):
    """:func:`double_sign` from the ranks of a string."""
    sign = rank_sign(ranks, i, a) * rank_sign(ranks, j, b)
    # The second move sees the first one's electron gone from i and come to a.
    low, high = min(j, b), max(j, b)
    return -sign if (low < i < high) != (low < a < high) else sign


@jit
def string_element(strings, s, t, bits, tables):
    """Element between strings s and t of one spin that differ in ``bits`` (0, 2 or 4) bits, the other spin left out."""
    words, ranks = strings.words, strings.ranks[s]
    if bits == 0:
        return string_energy(strings.occupied[s], tables)
    i, j, a, b = -1, -1, -1, -1
    for w in range(words.shape[1]):
        lost = words[s, w] & ~words[t, w]
        while lost:
            i, j = j, 64 * w + lowest_bit(lost)
            lost &= lost - ONE
        gained = words[t, w] & ~words[s, w]
        while gained:
            a, b = b, 64 * w + lowest_bit(gained)
            gained &= gained - ONE
    if bits == 2:
        value = tables.h1e[j, b]
        for k in range(strings.occupied.shape[1]):
            value += tables.direct[j, b, strings.occupied[s, k]]
        return rank_sign(ranks, j, b) * value
    return pair_sign(ranks, i, a, j, b) * tables.same_spin[(j * (j - 1) >> 1) + i, (b * (b - 1) >> 1) + a]


@jit
def matrix_element(bra, ket, tables, orbitals):
    """⟨bra|H|ket⟩ for determinants [2, W]; ``orbitals`` is an int64 scratch [4, n_orb]."""
    d_alpha = distance(bra[0], ket[0])
    d_beta = distance(bra[1], ket[1])
    if d_alpha + d_beta > 2:
        return 0.0
    holes, particles = orbitals[2], orbitals[3]
    if d_alpha == 2:
        return same_spin_double(ket[0], bra[0], tables, holes, particles)
    if d_beta == 2:
        return same_spin_double(ket[1], bra[1], tables, holes, particles)
    if d_alpha == 1 and d_beta == 1:
        moves(ket[0], bra[0], holes, particles)
        moves(ket[1], bra[1], holes[1:], particles[1:])
        i, a, j, b = holes[0], particles[0], holes[1], particles[1]
        return single_sign(ket[0], i, a) * single_sign(ket[1], j, b) * tables.eri[i, a, j, b]
    n_alpha = occupied_orbitals(ket[0], orbitals[0])
    n_beta = occupied_orbitals(ket[1], orbitals[1])
    if d_alpha == 1:
        moves(ket[0], bra[0], holes, particles)
        value = single_element(holes[0], particles[0], orbitals[0], n_alpha, orbitals[1], n_beta, tables)
        return single_sign(ket[0], holes[0], particles[0]) * value
    if d_beta == 1:
        moves(ket[1], bra[1], holes, particles)
        value = single_element(holes[0], particles[0], orbitals[1], n_beta, orbitals[0], n_alpha, tables)
        return single_sign(ket[1], holes[0], particles[0]) * value
    return diagonal_element(orbitals[0], n_alpha, orbitals[1], n_beta, tables)


@jit
def diagonal_rows(start, stop, determinants, tables, values):
    """⟨D|H|D⟩ of a block of determinants [N, 2, W] into ``values``."""
    orbitals = np.empty((2, tables.h1e.shape[0]), dtype=np.int64)
    for row in range(start, stop):
        n_alpha = occupied_orbitals(determinants[row, 0], orbitals[0])
        n_beta = occupied_orbitals(determinants[row, 1], orbitals[1])
        values[row] = diagonal_element(orbitals[0], n_alpha, orbitals[1], n_beta, tables)


@jit
def matrix_element_rows(start, stop, bra, ket, tables, values):
    """⟨bra_n|H|ket_n⟩ of a block of pairs into ``values``."""
    orbitals = np.empty((4, tables.h1e.shape[0]), dtype=np.int64)
    for row in range(start, stop):
        values[row] = matrix_element(bra[row], ket[row], tables, orbitals)
