"""The electronic Hamiltonian of a molecule on packed determinants."""

from __future__ import annotations

from torch import Tensor

from nnqs_lightning.chem.integrals import MolecularIntegrals
from nnqs_lightning.fock import Sector


class MolecularHamiltonian:
    """H on the determinants of one sector."""

    def __init__(self, integrals: MolecularIntegrals) -> None:
        self.integrals = integrals
        self.sector = Sector(integrals.n_orb, integrals.n_alpha, integrals.n_beta)

    def diagonal(self, determinants: Tensor) -> Tensor:
        """⟨D|H|D⟩, float64 [N], e_core included."""
        raise NotImplementedError
