"""Local energies within a set of determinants: enumerate every connected state, look it up in a hash table.

Most connected states are no members: a bitmap that fits the cache tells so of nearly all of them, and spares the table.
"""

# Kernels take what numba infers.
# mypy: disallow-untyped-defs=False

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nnqs_lightning.fock.compiled import jit
from nnqs_lightning.fock.lookup import find_rows, hash_row
from nnqs_lightning.hamiltonian.connected import Excitations, connect, excitations

LOG_CAP = 690.0
"""Quotients beyond e^LOG_CAP are cut there: a row of them, times elements of H, is still finite."""

BITS_PER_MEMBER = 16
MAX_BITS = 1 << 22
"""Half a megabyte: what a core's own cache holds."""


class Members(NamedTuple):
    """A set of determinants to be searched."""

    words: NDArray[np.uint64]
    """[N, 2W]: a determinant per row."""
    slots: NDArray[np.int64]
    """Hash table of their positions."""
    bits: NDArray[np.uint64]
    """Bitmap with the bit of every member's hash set; a power of two of words."""


def members(words: NDArray[np.uint64], slots: NDArray[np.int64], size: int) -> Members:
    """The first ``size`` determinants of a hash table with their bitmap."""
    n_bits = 1 << (BITS_PER_MEMBER * size).bit_length()
    found = Members(words, slots, np.zeros(max(64, min(n_bits, MAX_BITS)) // 64, dtype=np.uint64))
    set_bits(words[:size], found.bits)
    return found


@jit
def set_bits(words, bits):
    """Set the bit of each row of ``words``."""
    for n in range(words.shape[0]):
        word, bit = bit_place(hash_row(words, n), bits)
        bits[word] |= np.uint64(1) << bit


@jit
def bit_place(mixed, bits):
    """Word and bit of a hash; the table uses the lower half of it."""
    place = (mixed >> np.uint64(32)) & np.uint64(64 * bits.shape[0] - 1)
    return place >> np.uint64(6), place & np.uint64(63)


class Scratch(NamedTuple):
    """What the search for the members that one determinant is connected to needs."""

    alpha: Excitations
    beta: Excitations
    states: NDArray[np.uint64]
    elements: NDArray[np.float64]
    """Elements of the members found."""
    positions: NDArray[np.int64]
    """Their positions in the set."""


@jit
def scratch(n_orb, n_words, n_connected):
    """Scratch for any determinant."""
    return Scratch(
        excitations(n_orb, n_words),
        excitations(n_orb, n_words),
        np.empty((n_connected, 2, n_words), dtype=np.uint64),
        np.empty(n_connected),
        np.empty(n_connected, dtype=np.int64),
    )


@jit
def find_members(row, held, tables, room):
    """Write elements and positions of the members that determinant ``row`` is connected to; return their number."""
    n_words = room.states.shape[2]
    determinant = held.words[row].reshape(2, n_words)
    count = connect(determinant, tables, 0.0, room.alpha, room.beta, room.states, room.elements)
    rows_of_words = room.states.reshape(room.states.shape[0], 2 * n_words)
    n_near = 0
    for k in range(count):
        word, bit = bit_place(hash_row(rows_of_words, k), held.bits)
        # Moved in any case, and kept where the next one goes behind it.
        for w in range(rows_of_words.shape[1]):
            rows_of_words[n_near, w] = rows_of_words[k, w]
        room.elements[n_near] = room.elements[k]
        n_near += np.int64((held.bits[word] >> bit) & np.uint64(1))
    find_rows(0, n_near, rows_of_words, held.words, held.slots, room.positions)
    n_members = 0
    for k in range(n_near):
        room.elements[n_members] = room.elements[k]
        room.positions[n_members] = room.positions[k]
        n_members += room.positions[k] >= 0
    return n_members


@jit
def hash_rows(start, stop, rows, held, tables, n_connected, psi, sums):
    """Σ_D' H_DD' ψ(D') over the set for a block of ``rows`` into ``sums`` [M, 2]; ψ [N, 2] in parts."""
    room = scratch(tables.h1e.shape[0], held.words.shape[1] // 2, n_connected)
    for n in range(start, stop):
        real, imaginary = 0.0, 0.0
        for k in range(find_members(rows[n], held, tables, room)):
            real += room.elements[k] * psi[room.positions[k], 0]
            imaginary += room.elements[k] * psi[room.positions[k], 1]
        sums[n, 0] = real
        sums[n, 1] = imaginary


@jit
def quotient_rows(start, stop, rows, held, tables, n_connected, log_psi, values):
    """Σ_D' H_DD' exp(log ψ(D') − log ψ(D)) for a block of ``rows``: safe where ψ underflows.

    The modulus of a quotient is capped, so that a vanishing ψ(D) gives a large value and never inf − inf.
    """
    room = scratch(tables.h1e.shape[0], held.words.shape[1] // 2, n_connected)
    for n in range(start, stop):
        values[n] = 0.0
        for k in range(find_members(rows[n], held, tables, room)):
            other = log_psi[room.positions[k]]
            if other.real > -np.inf:
                exponent = other - log_psi[rows[n]]
                values[n] += room.elements[k] * np.exp(complex(min(exponent.real, LOG_CAP), exponent.imag))
