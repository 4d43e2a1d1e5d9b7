"""What integrals say about single orbitals and about pairs of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nnqs_lightning.chem.integrals import MolecularIntegrals

Array = NDArray[np.float64]


def reference_occupation(integrals: MolecularIntegrals) -> Array:
    """Occupations (α, β) of the reference determinant, [n_orb, 2], whatever the order of the orbital list.

    The lowest orbitals where the source gives orbital energies; otherwise the orbitals with the lowest h_pp, then
    single replacements for as long as one lowers the energy of the determinant.
    """
    levels = integrals.mo_energy if integrals.mo_energy is not None else np.diag(integrals.h1e)
    rank = np.argsort(np.argsort(levels, kind="stable"), kind="stable")
    occupation = np.stack([rank < integrals.n_alpha, rank < integrals.n_beta], axis=-1).astype(np.float64)
    if integrals.mo_energy is None:
        while _replace_one(integrals, occupation):
            pass
    return occupation


def _replace_one(integrals: MolecularIntegrals, occupation: Array) -> bool:
    """Make the single replacement that lowers the energy most, in place; False if none lowers it."""
    levels = _spin_fock_diagonals(integrals, occupation)
    repulsion = integrals.coulomb - integrals.exchange
    gains = levels.T[:, None, :] - levels.T[:, :, None] - repulsion  # [spin, from, to]
    possible = (occupation.T[:, :, None] == 1) & (occupation.T[:, None, :] == 0)
    gains = np.where(possible, gains, np.inf)
    spin, source, target = np.unravel_index(np.argmin(gains), gains.shape)
    if gains[spin, source, target] > -1e-10:
        return False
    occupation[source, spin], occupation[target, spin] = 0.0, 1.0
    return True


def _spin_fock_diagonals(integrals: MolecularIntegrals, occupation: Array) -> Array:
    density = occupation.sum(-1)
    mean_field = np.diag(integrals.h1e) + integrals.coulomb @ density
    return mean_field[:, None] - integrals.exchange @ occupation


def fock_diagonal(integrals: MolecularIntegrals) -> Array:
    """F_pp = h_pp + Σ_q n_q (J_pq − ½ K_pq) of the reference determinant, hartree [n_orb]."""
    return _spin_fock_diagonals(integrals, reference_occupation(integrals)).mean(-1)


def orbital_energies(integrals: MolecularIntegrals) -> Array:
    """mo_energy, or :func:`fock_diagonal` where the source gives none; hartree [n_orb]."""
    return integrals.mo_energy if integrals.mo_energy is not None else fock_diagonal(integrals)


def levels(integrals: MolecularIntegrals) -> Array:
    """Orbital energies from the middle between the highest occupied and the lowest empty one; hartree [n_orb]."""
    energies = orbital_energies(integrals)
    filled = reference_occupation(integrals).sum(-1)
    borders = [energies[filled > 0].max(initial=-np.inf), energies[filled < 2].min(initial=np.inf)]
    finite = [border for border in borders if np.isfinite(border)]
    return energies - np.mean(finite)
