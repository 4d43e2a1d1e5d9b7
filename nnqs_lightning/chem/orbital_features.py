"""Where molecular orbitals sit and how fast their electrons are."""

from __future__ import annotations

from typing import Any

import numpy as np

from nnqs_lightning.chem.integrals import Array


def spatial_features(mole: Any, coefficients: Array) -> dict[str, Array]:
    """Expectation values of single orbitals, from the centre of nuclear charge.

    Args:
        mole: the `pyscf.gto.Mole`.
        coefficients: [n_ao, n_orb].

    Returns:
        ``centroid`` ⟨r⟩ in bohr [n_orb, 3], ``spread`` √(⟨r²⟩ − ⟨r⟩²) in bohr [n_orb], ``kinetic`` ⟨−½∇²⟩ in
        hartree [n_orb].
    """
    charges = mole.atom_charges()
    centre = charges @ mole.atom_coords() / charges.sum()
    with mole.with_common_orig(centre):
        position, square = mole.intor("int1e_r"), mole.intor("int1e_r2")

    def expectation(operator: Array) -> Array:
        return np.einsum("up,...uv,vp->p...", coefficients, operator, coefficients)

    centroid = expectation(position)
    spread = np.sqrt(np.maximum(expectation(square) - (centroid**2).sum(-1), 0.0))
    return {"centroid": centroid, "spread": spread, "kinetic": expectation(mole.intor("int1e_kin"))}
