"""Local energies within a set of determinants, the plain way: every pair. The oracle of the other strategies."""

# Kernels take what numba infers.
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import numpy as np

from nnqs_lightning.fock.compiled import jit, popcount
from nnqs_lightning.hamiltonian.slater_condon import matrix_element


@jit
def differing_bits(determinants, n, m):
    """Spin orbitals occupied in only one of the determinants n and m."""
    bits = 0
    for w in range(determinants.shape[2]):
        bits += popcount(determinants[n, 0, w] ^ determinants[m, 0, w])
        bits += popcount(determinants[n, 1, w] ^ determinants[m, 1, w])
    return bits


@jit
def pair_rows(start, stop, rows, determinants, tables, psi, sums):
    """Σ_D' H_DD' ψ(D') over the set for a block of ``rows`` into ``sums`` [M, 2]; ψ [N, 2] in parts."""
    orbitals = np.empty((4, tables.h1e.shape[0]), dtype=np.int64)
    for n in range(start, stop):
        sums[n] = 0.0
        for column in range(determinants.shape[0]):
            if differing_bits(determinants, rows[n], column) <= 4:
                element = matrix_element(determinants[rows[n]], determinants[column], tables, orbitals)
                sums[n, 0] += element * psi[column, 0]
                sums[n, 1] += element * psi[column, 1]


@jit
def near_rows(start, stop, rows, determinants, counts):
    """Members of the set [N, 2, W] within a double excitation of a block of ``rows``, themselves included."""
    for n in range(start, stop):
        counts[n] = 0
        for column in range(determinants.shape[0]):
            counts[n] += differing_bits(determinants, rows[n], column) <= 4
