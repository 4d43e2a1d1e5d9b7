"""The contract of a local-energy estimate: the type behind the config key ``model.local_energy``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from torch import Tensor

from nnqs_lightning.ansatz.base import Ansatz
from nnqs_lightning.errors import UserError
from nnqs_lightning.fock import SampleBatch
from nnqs_lightning.hamiltonian import MolecularHamiltonian


@dataclass
class LocalEnergies:
    """Local energies of a sample and the weights with which they make an energy."""

    values: Tensor
    """complex128 [N], hartree, e_core included."""
    weights: Tensor
    """float64 [N]; they sum to one over the ranks together."""
    variational: bool
    """True if Σ weights · values is a Rayleigh quotient, and so never below the ground state."""
    stats: dict[str, float] = field(default_factory=dict)
    """``local_energy/quantity`` figures for the log."""
    diagonal: Tensor | None = None
    """float64 [N], ⟨D|H|D⟩ in hartree, for directions that weigh determinants by it."""


class LocalEnergy(ABC):
    """E_loc(D) = Σ_D' H_DD' ψ(D') / ψ(D)."""

    @abstractmethod
    def evaluate(self, hamiltonian: MolecularHamiltonian, ansatz: Ansatz, sample: SampleBatch) -> LocalEnergies:
        """Local energies of this rank's determinants, without gradient; collective: every rank calls it."""


def check_basis(hamiltonian: MolecularHamiltonian, ansatz: Ansatz) -> None:
    """Make sure that ψ and H speak of the same basis states.

    Raises:
        UserError: their sectors differ, say in the spin parity.
    """
    if hamiltonian.sector != ansatz.sector:
        raise UserError(
            f"ψ lives on {ansatz.sector} and H on {hamiltonian.sector}: build it by "
            "nnqs_lightning.hamiltonian.hamiltonian_on(integrals, ansatz.sector)"
        )
