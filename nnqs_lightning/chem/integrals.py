"""Integrals of an electronic Hamiltonian in an orthonormal basis of spatial orbitals."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from nnqs_lightning.errors import UserError

Array = NDArray[np.float64]

SYMMETRY_TOLERANCE = 1e-8
"""Largest accepted difference, in hartree, between integrals that symmetry makes equal."""


@dataclass(frozen=True)
class MolecularIntegrals:
    """H = e_core + Σ h_pq a†_p a_q + ½ Σ (pq|rs) a†_p a†_r a_s a_q, spin-summed, real orbitals, hartree.

    Raises:
        UserError: wrong shapes, NaN or infinite entries, an impossible electron number, a non-symmetric h1e, an eri
            without 8-fold symmetry.
    """

    h1e: Array
    """[n_orb, n_orb] one-electron integrals, symmetric."""
    eri: Array
    """[n_orb, n_orb, n_orb, n_orb] chemists' (pq|rs), 8-fold symmetric."""
    e_core: float
    """Nuclear repulsion plus frozen core."""
    n_alpha: int
    n_beta: int
    orbsym: tuple[int, ...] | None = None
    """Irrep of each orbital, Molpro numbering 1 … 8 (Abelian groups: product = XOR of number − 1)."""
    mo_energy: Array | None = None
    """[n_orb] orbital energies where the source gives them."""
    mo_coeff: Array | None = field(default=None, repr=False)
    """[n_ao, n_orb] where the source has atomic orbitals."""
    point_group: str | None = None
    wfn_sym: int = 1
    """Irrep of the target state (FCIDUMP's ISYM), Molpro numbering."""
    orbital_features: Mapping[str, Array] = field(default_factory=dict, repr=False)
    """Further features of single orbitals, [n_orb] or [n_orb, k], where the source has atomic orbitals."""

    @property
    def n_orb(self) -> int:
        """Number of spatial orbitals."""
        return self.h1e.shape[0]

    @property
    def spin(self) -> int:
        """2S = n_alpha − n_beta = FCIDUMP's MS2."""
        return self.n_alpha - self.n_beta

    @property
    def exchange(self) -> Array:
        """K_pq = (pq|qp), [n_orb, n_orb]."""
        return np.einsum("pqqp->pq", self.eri)

    @property
    def coulomb(self) -> Array:
        """J_pq = (pp|qq), [n_orb, n_orb]."""
        return np.einsum("ppqq->pq", self.eri)

    def __post_init__(self) -> None:
        n = self.h1e.shape[0]
        if self.h1e.shape != (n, n) or self.eri.shape != (n, n, n, n):
            raise UserError(
                f"h1e has shape {self.h1e.shape} and eri {self.eri.shape}, expected [n, n] and [n, n, n, n]"
            )
        if not (np.isfinite(self.h1e).all() and np.isfinite(self.eri).all() and np.isfinite(self.e_core)):
            raise UserError("the integrals contain NaN or infinite values: check the source of model.system")
        if not (0 <= self.n_beta <= self.n_alpha <= n and self.n_alpha > 0):
            raise UserError(
                f"{self.n_alpha} α and {self.n_beta} β electrons in {n} orbitals: expected n_orb ≥ n_alpha ≥ n_beta "
                "≥ 0 and one electron at least, change the electron number or model.system.spin"
            )
        self._check_symmetry()

    def _check_symmetry(self) -> None:
        defects = {
            "h1e is not symmetric": np.abs(self.h1e - self.h1e.T),
            "(pq|rs) ≠ (qp|rs)": np.abs(self.eri - self.eri.transpose(1, 0, 2, 3)),
            "(pq|rs) ≠ (rs|pq)": np.abs(self.eri - self.eri.transpose(2, 3, 0, 1)),
        }
        for defect, difference in defects.items():
            if difference.size and difference.max() > SYMMETRY_TOLERANCE:
                raise UserError(f"{defect} by up to {difference.max():.1e}: expected the integrals of real orbitals")

    def digest(self) -> str:
        """Hexadecimal fingerprint of the Hamiltonian and its sector (labels such as orbsym left aside)."""
        sha = hashlib.sha256(repr((self.n_orb, self.n_alpha, self.n_beta, float(self.e_core))).encode())
        for array in (self.h1e, self.eri):
            sha.update(np.ascontiguousarray(array, dtype=np.float64).tobytes())
        return sha.hexdigest()
