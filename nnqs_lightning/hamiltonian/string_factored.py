"""H ψ within a set, from a dense table of ψ over its distinct α strings × its distinct β strings.

The two-spin part Σ (pq|rs) E_pq^α E_rs^β ψ is, for one α string, a product of the matrix of integrals and the rows of ψ
that E_pq reaches (Knowles and Handy, Chem. Phys. Lett. 111, 315 (1984), without leaving the strings of the set).
"""

# Kernels take what numba infers.
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nnqs_lightning.chem.integrals import Array
from nnqs_lightning.fock.compiled import jit


def packed_pairs(eri: Array) -> Array:
    """(pq|rs) with both pairs packed, p ≥ q at p (p + 1) / 2 + q: [n (n + 1) / 2, n (n + 1) / 2]."""
    p, q = np.tril_indices(eri.shape[0])
    return np.ascontiguousarray(eri[p[:, None], q[:, None], p, q])


def one_spin_products(table: NDArray[np.float64], alpha: Array, beta: Array) -> NDArray[np.float64]:
    """Couplings of either spin applied to ψ [2, n_alpha_strings, n_beta_strings] (real and imaginary parts)."""
    return np.matmul(alpha, table) + np.matmul(table, beta)


@jit
def factored_rows(start, stop, targets, alpha_links, beta_links, alpha, beta, packed, table, sums):
    """Add the two-spin part of Σ H_DD' ψ(D') for a block of α groups.

    Args:
        targets: α groups of the D; ``sums`` [M, 2] (real and imaginary parts) follows their order.
        alpha_links: single excitations among α strings, ``beta_links`` those among β strings.
        alpha: the α strings, ``beta`` the β strings.
        packed: :func:`packed_pairs`.
        table: ψ [2, n_alpha_strings, n_beta_strings], zero outside the set.
    """
    n_pairs = packed.shape[0]
    n_orb = int(np.sqrt(2 * n_pairs))
    n_beta = table.shape[2]
    most = np.max(np.diff(alpha_links.offsets)) + alpha.occupied.shape[1]
    columns = np.empty(most, dtype=np.int64)
    reached = np.empty((most, 2 * n_beta))
    for g in range(start, stop):
        if targets.offsets[g + 1] == targets.offsets[g]:
            continue
        count = reach(g, alpha_links, alpha.occupied[g], n_orb, table, columns, reached)
        integrals = np.empty((n_pairs, count))
        for m in range(count):
            integrals[:, m] = packed[columns[m]]
        products = np.dot(integrals, reached[:count])
        for k in range(targets.offsets[g], targets.offsets[g + 1]):
            string = targets.other[k]
            real, imaginary = 0.0, 0.0
            for n in range(beta_links.offsets[string], beta_links.offsets[string + 1]):
                pair = packed_index(beta_links.pair[n], n_orb)
                linked = beta_links.target[n]
                real += beta_links.sign[n] * products[pair, linked]
                imaginary += beta_links.sign[n] * products[pair, n_beta + linked]
            for r in beta.occupied[string]:
                pair = r * (r + 3) >> 1
                real += products[pair, string]
                imaginary += products[pair, n_beta + string]
            sums[k, 0] += real
            sums[k, 1] += imaginary


@jit
def reach(g, links, occupied, n_orb, table, columns, reached):
    """Write the rows of ψ that E_pq reaches from α string g, and their packed pq; return how many."""
    n_beta = table.shape[2]
    count = 0
    for m in range(links.offsets[g], links.offsets[g + 1]):
        columns[count] = packed_index(links.pair[m], n_orb)
        reached[count, :n_beta] = links.sign[m] * table[0, links.target[m]]
        reached[count, n_beta:] = links.sign[m] * table[1, links.target[m]]
        count += 1
    for p in occupied:
        columns[count] = p * (p + 3) >> 1
        reached[count, :n_beta] = table[0, g]
        reached[count, n_beta:] = table[1, g]
        count += 1
    return count


@jit
def packed_index(pair, n_orb):
    """Place of n_orb · i + a among packed pairs."""
    i, a = pair // n_orb, pair % n_orb
    high, low = max(i, a), min(i, a)
    return (high * (high + 1) >> 1) + low
