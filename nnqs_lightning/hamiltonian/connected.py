"""Every determinant that H connects to a given one."""

# Kernels take what numba infers.
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import numpy as np

from nnqs_lightning.fock.compiled import jit
from nnqs_lightning.hamiltonian.slater_condon import (
    diagonal_element,
    double_sign,
    empty_orbitals,
    occupied_orbitals,
    single_element,
    single_sign,
    write_excited,
)


@jit
def append_same_spin(
    determinant, spin, occupied, n_occupied, empty, n_empty, other, n_other, tables, threshold, states, elements, count
):
    """Append the singles and doubles of one spin string; return the new number of states."""
    string = determinant[spin]
    for k in range(n_occupied):
        i = occupied[k]
        for l in range(n_empty):
            a = empty[l]
            value = single_element(i, a, occupied, n_occupied, other, n_other, tables)
            if abs(value) > threshold:
                states[count, 1 - spin] = determinant[1 - spin]
                write_excited(string, states[count, spin], i, a)
                elements[count] = single_sign(string, i, a) * value
                count += 1
            for m in range(k):
                j = occupied[m]
                for n in range(l):
                    b = empty[n]
                    value = tables.eri[i, a, j, b] - tables.eri[i, b, j, a]
                    if abs(value) > threshold:
                        states[count, 1 - spin] = determinant[1 - spin]
                        write_excited(string, states[count, spin], i, a)
                        write_excited(states[count, spin], states[count, spin], j, b)
                        elements[count] = double_sign(string, i, a, j, b) * value
                        count += 1
    return count


@jit
def append_opposite_spin(determinant, occupied, n_occupied, empty, n_empty, tables, threshold, states, elements, count):
    """Append the doubles with one electron of each spin; return the new number of states."""
    alpha, beta = determinant[0], determinant[1]
    signs = np.empty((n_occupied[1], n_empty[1]))
    for m in range(n_occupied[1]):
        for n in range(n_empty[1]):
            signs[m, n] = single_sign(beta, occupied[1, m], empty[1, n])
    for k in range(n_occupied[0]):
        i = occupied[0, k]
        for l in range(n_empty[0]):
            a = empty[0, l]
            sign = single_sign(alpha, i, a)
            for m in range(n_occupied[1]):
                j = occupied[1, m]
                for n in range(n_empty[1]):
                    b = empty[1, n]
                    value = tables.eri[i, a, j, b]
                    if abs(value) > threshold:
                        write_excited(alpha, states[count, 0], i, a)
                        write_excited(beta, states[count, 1], j, b)
                        elements[count] = sign * signs[m, n] * value
                        count += 1
    return count


@jit
def connect(determinant, tables, threshold, states, elements):
    """Write the determinants D' with |⟨D'|H|D⟩| > threshold and their elements; return how many.

    The diagonal comes first and is always kept. ``states`` is [n_connected, 2, W], ``elements`` [n_connected].
    """
    n_orb = tables.h1e.shape[0]
    occupied = np.empty((2, n_orb), dtype=np.int64)
    empty = np.empty((2, n_orb), dtype=np.int64)
    n_occupied = np.empty(2, dtype=np.int64)
    n_empty = np.empty(2, dtype=np.int64)
    for spin in range(2):
        n_occupied[spin] = occupied_orbitals(determinant[spin], occupied[spin])
        n_empty[spin] = empty_orbitals(determinant[spin], n_orb, empty[spin])
    states[0] = determinant
    elements[0] = diagonal_element(occupied[0], n_occupied[0], occupied[1], n_occupied[1], tables)
    count = 1
    for spin in range(2):
        other = 1 - spin
        count = append_same_spin(
            determinant, spin, occupied[spin], n_occupied[spin], empty[spin], n_empty[spin],
            occupied[other], n_occupied[other], tables, threshold, states, elements, count,
        )  # fmt: skip
    return append_opposite_spin(
        determinant, occupied, n_occupied, empty, n_empty, tables, threshold, states, elements, count
    )


@jit
def connect_rows(start, stop, determinants, tables, threshold, states, elements, counts):
    """:func:`connect` for a block of determinants into ``states`` [N, n_connected, 2, W] and so on."""
    for row in range(start, stop):
        counts[row] = connect(determinants[row], tables, threshold, states[row], elements[row])
