"""Entropies of orbitals and the mutual information of pairs (Rissler, Noack and White, Chem. Phys. 323, 519 (2006)).

The reduced density matrix of one orbital has four states (empty, α, β, both), that of a pair has sixteen.
"""

from __future__ import annotations

import numpy as np

from nnqs_lightning.chem.cluster import CIVector, Occupations, row_keys
from nnqs_lightning.chem.integrals import Array


def orbital_entropies(vector: CIVector) -> Array:
    """One-orbital von Neumann entropies S_p = −Σ w ln w, [n_orb], between 0 and ln 4.

    Args:
        vector: a state of definite particle numbers, so that the density matrix of one orbital is diagonal.
    """
    states = vector.occupations[:, :, 0] + 2 * vector.occupations[:, :, 1]
    weights = vector.coefficients**2
    by_state = np.array([weights @ (states == state) for state in range(4)])
    return _entropy(by_state)


def pair_entropies(vector: CIVector) -> Array:
    """Two-orbital von Neumann entropies S_pq, [n_orb, n_orb], symmetric; the diagonal has S_p."""
    n_orb = vector.occupations.shape[1]
    entropies = np.diag(orbital_entropies(vector))
    for p in range(n_orb):
        for q in range(p + 1, n_orb):
            entropies[p, q] = entropies[q, p] = _entropy(np.asarray(np.linalg.eigvalsh(_pair_density(vector, p, q))))
    return entropies


def mutual_information(vector: CIVector) -> Array:
    """I_pq = S_p + S_q − S_pq, [n_orb, n_orb], not negative, zero on the diagonal.

    Some authors halve it. The cost grows with n_orb² n_determinants: truncate long vectors.
    """
    single = orbital_entropies(vector)
    information = single[:, None] + single[None, :] - pair_entropies(vector)
    np.fill_diagonal(information, 0.0)
    return np.maximum(information, 0.0)


def _entropy(probabilities: Array) -> Array:
    """−Σ w ln w over axis 0, with 0 ln 0 = 0."""
    positive = np.where(probabilities > 0.0, probabilities, 1.0)
    return -(positive * np.log(positive)).sum(axis=0)


def _pair_density(vector: CIVector, p: int, q: int) -> Array:
    """[16, 16] density matrix of orbitals p < q, all others traced out."""
    occupations = vector.occupations
    local = occupations[:, [p, p, q, q], [0, 1, 0, 1]] @ np.array([1, 2, 4, 8])
    environment = occupations.copy()
    environment[:, [p, q]] = 0
    keys = row_keys(environment.reshape(len(environment), -1))
    _, row = np.unique(keys, return_inverse=True)
    amplitudes = np.zeros((row.max() + 1, 16))
    amplitudes[row.ravel(), local] = vector.coefficients * _signs_in_front(occupations, p, q)
    return amplitudes.T @ amplitudes


def _signs_in_front(occupations: Occupations, p: int, q: int) -> Array:
    """Sign of moving pα, pβ, qα, qβ, in this order, in front of all other creation operators."""
    counts = occupations.astype(np.int64)
    below = np.cumsum(counts, axis=1) - counts
    n_alpha = counts[:, :, 0].sum(axis=1)
    (p_alpha, p_beta), (q_alpha, q_beta) = counts[:, p].T, counts[:, q].T
    passed = (
        p_alpha * below[:, p, 0]
        + p_beta * (n_alpha - p_alpha + below[:, p, 1])
        + q_alpha * (below[:, q, 0] - p_alpha)
        + q_beta * (n_alpha - p_alpha - q_alpha + below[:, q, 1] - p_beta)
    )
    return np.where(passed % 2, -1.0, 1.0)
