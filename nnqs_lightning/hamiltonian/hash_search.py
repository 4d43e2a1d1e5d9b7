"""Local energies within a set of determinants: enumerate every connected state, look it up in a hash table."""

# Kernels take what numba infers.
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import numpy as np

from nnqs_lightning.fock.compiled import jit
from nnqs_lightning.fock.lookup import find_slot
from nnqs_lightning.hamiltonian.connected import connect

LOG_TINY = -300.0
"""Below e^LOG_TINY of the largest, amplitudes are divided as differences of logarithms: they may underflow."""


@jit
def ratio_sum(row, count, hits, elements, log_psi, psi):
    """Σ_k elements_k ψ(hits_k) / ψ(row); entries with hits_k < 0 are absent. ψ = exp(log ψ − max Re log ψ)."""
    total = 0.0 + 0.0j
    if abs(psi[row]) > np.exp(LOG_TINY):
        for k in range(count):
            if hits[k] >= 0:
                total += elements[k] * psi[hits[k]]
        return total / psi[row]
    for k in range(count):
        if hits[k] >= 0 and log_psi[hits[k]].real > -np.inf:
            total += elements[k] * bounded_exp(log_psi[hits[k]] - log_psi[row])
    return total


@jit
def bounded_exp(exponent):
    """exp with a modulus capped at e^700, so that a vanishing amplitude gives a large quotient and never inf − inf."""
    return np.exp(complex(min(exponent.real, 700.0), exponent.imag))


@jit
def local_energy_rows(start, stop, rows, determinants, log_psi, psi, slots, tables, threshold, n_connected, values):
    """Local energies of a block of ``rows`` (positions in ``determinants``) into ``values``."""
    states = np.empty((n_connected, 2, determinants.shape[2]), dtype=np.uint64)
    elements = np.empty(n_connected)
    hits = np.empty(n_connected, dtype=np.int64)
    for n in range(start, stop):
        count = connect(determinants[rows[n]], tables, threshold, states, elements)
        for k in range(count):
            hits[k] = slots[find_slot(states[k], determinants, slots)]
        values[n] = ratio_sum(rows[n], count, hits, elements, log_psi, psi)


@jit
def count_hits_rows(start, stop, determinants, slots, tables, n_connected, counts):
    """Number of stored elements in each row of the sparse H of ``determinants``."""
    states = np.empty((n_connected, 2, determinants.shape[2]), dtype=np.uint64)
    elements = np.empty(n_connected)
    for row in range(start, stop):
        count = connect(determinants[row], tables, 0.0, states, elements)
        counts[row] = 0
        for k in range(count):
            if slots[find_slot(states[k], determinants, slots)] >= 0:
                counts[row] += 1


@jit
def fill_csr_rows(start, stop, determinants, slots, tables, n_connected, offsets, columns, elements):
    """Columns, rising, and elements of a block of rows of the sparse H of ``determinants``."""
    states = np.empty((n_connected, 2, determinants.shape[2]), dtype=np.uint64)
    row_elements = np.empty(n_connected)
    for row in range(start, stop):
        count = connect(determinants[row], tables, 0.0, states, row_elements)
        place = offsets[row]
        for k in range(count):
            hit = slots[find_slot(states[k], determinants, slots)]
            if hit >= 0:
                columns[place] = hit
                elements[place] = row_elements[k]
                place += 1
        order = np.argsort(columns[offsets[row] : place])
        columns[offsets[row] : place] = columns[offsets[row] : place][order]
        elements[offsets[row] : place] = elements[offsets[row] : place][order]
