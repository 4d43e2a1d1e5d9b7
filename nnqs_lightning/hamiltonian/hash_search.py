"""Local energies within a set of determinants: enumerate every connected state, look it up in a hash table."""

# Kernels take what numba infers.
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import numpy as np

from nnqs_lightning.fock.compiled import jit
from nnqs_lightning.fock.lookup import find_slot
from nnqs_lightning.hamiltonian.connected import connect, excitations

LOG_CAP = 690.0
"""Quotients beyond e^LOG_CAP are cut there: a row of them, times elements of H, is still finite."""


@jit
def find_connected(row, held, slots, tables, alpha, beta, states, elements, hits):
    """Elements of one row of H, and the position in the set of each connected state or −1; return their number.

    ``held`` is [N, 2W], a determinant per row; ``alpha`` … ``hits`` are scratch, the last three filled.
    """
    n_words = states.shape[2]
    count = connect(held[row].reshape(2, n_words), tables, 0.0, alpha, beta, states, elements)
    rows_of_words = states.reshape(states.shape[0], 2 * n_words)
    for k in range(count):
        hits[k] = slots[find_slot(rows_of_words, k, held, slots)]
    return count


@jit
def hash_rows(start, stop, rows, held, slots, tables, n_connected, psi, sums):
    """Σ_D' H_DD' ψ(D') over the set for a block of ``rows`` into ``sums`` [M, 2]; ψ [N, 2] in parts."""
    n_orb, n_words = tables.h1e.shape[0], held.shape[1] // 2
    alpha, beta = excitations(n_orb, n_words), excitations(n_orb, n_words)
    states = np.empty((n_connected, 2, n_words), dtype=np.uint64)
    elements = np.empty(n_connected)
    hits = np.empty(n_connected, dtype=np.int64)
    for n in range(start, stop):
        count = find_connected(rows[n], held, slots, tables, alpha, beta, states, elements, hits)
        real, imaginary = 0.0, 0.0
        for k in range(count):
            if hits[k] >= 0:
                real += elements[k] * psi[hits[k], 0]
                imaginary += elements[k] * psi[hits[k], 1]
        sums[n, 0] = real
        sums[n, 1] = imaginary


@jit
def quotient_rows(start, stop, rows, held, slots, tables, n_connected, log_psi, values):
    """Σ_D' H_DD' exp(log ψ(D') − log ψ(D)) for a block of ``rows``: safe where ψ underflows.

    The modulus of a quotient is capped, so that a vanishing ψ(D) gives a large value and never inf − inf.
    """
    n_orb, n_words = tables.h1e.shape[0], held.shape[1] // 2
    alpha, beta = excitations(n_orb, n_words), excitations(n_orb, n_words)
    states = np.empty((n_connected, 2, n_words), dtype=np.uint64)
    elements = np.empty(n_connected)
    hits = np.empty(n_connected, dtype=np.int64)
    for n in range(start, stop):
        count = find_connected(rows[n], held, slots, tables, alpha, beta, states, elements, hits)
        values[n] = 0.0
        for k in range(count):
            if hits[k] >= 0 and log_psi[hits[k]].real > -np.inf:
                exponent = log_psi[hits[k]] - log_psi[rows[n]]
                values[n] += elements[k] * np.exp(complex(min(exponent.real, LOG_CAP), exponent.imag))
