"""H on the combinations of determinants that spin flip maps to plus or minus themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nnqs_lightning.chem.integrals import MolecularIntegrals
from nnqs_lightning.fock import Sector
from nnqs_lightning.fock.spin_flip import expand, flip, is_open_shell, multiplicities, represent
from nnqs_lightning.hamiltonian.molecular import ConnectedStates, MolecularHamiltonian

if TYPE_CHECKING:
    from nnqs_lightning.hamiltonian.spin_flip_subspace import SpinFlipSubspace


class SpinFlipHamiltonian(MolecularHamiltonian):
    """H in the basis of a sector with a spin parity s: closed shells and (|D⟩ + s |flipped D⟩) / √2.

    Determinants passed to its methods, and those that come back, are representatives
    (see :mod:`nnqs_lightning.fock.spin_flip`). ⟨D|H|D'⟩ stands for (g_D / g_D') (H_DD' + s H_D,flipped D'), the second
    term for open shells D' alone, with g² = 1 for closed and 2 for open shells. Local energies are those of the state.

    Args:
        integrals: as many α as β electrons.
        spin_parity: s, 1 for even and −1 for odd S.
    """

    def __init__(self, integrals: MolecularIntegrals, spin_parity: int) -> None:
        super().__init__(integrals)
        self.sector = Sector(integrals.n_orb, integrals.n_alpha, integrals.n_beta, spin_parity)
        self.plain = MolecularHamiltonian(integrals)

    def diagonal(self, determinants: Tensor) -> Tensor:
        """⟨D|H|D⟩, float64 [N], e_core included."""
        exchanged = self.sector.spin_parity * self.plain.matrix_elements(determinants, flip(determinants))
        return self.plain.diagonal(determinants) + torch.where(is_open_shell(determinants), exchanged, 0.0)

    def matrix_elements(self, bra: Tensor, ket: Tensor) -> Tensor:
        """⟨bra_n|H|ket_n⟩, float64 [N], of pairs of representatives."""
        exchanged = self.sector.spin_parity * self.plain.matrix_elements(bra, flip(ket))
        total = self.plain.matrix_elements(bra, ket) + torch.where(is_open_shell(ket), exchanged, 0.0)
        return total * (multiplicities(bra) / multiplicities(ket)).sqrt()

    def connected_states(self, determinants: Tensor, threshold: float = 0.0) -> ConnectedStates:
        """See :class:`MolecularHamiltonian`; a representative may occur twice in a row, then its elements add up."""
        return self._represented(determinants, self.plain.connected_states(determinants, threshold))[0]

    def drawn_states(
        self, determinants: Tensor, threshold: float, n_draws: int, seed: int
    ) -> tuple[ConnectedStates, Tensor]:
        """See :class:`MolecularHamiltonian`; elements of a row and a representative add up."""
        connected, is_drawn = self.plain.drawn_states(determinants, threshold, n_draws, seed)
        connected, kept = self._represented(determinants, connected)
        return connected, is_drawn[kept]

    def subspace(self, determinants: Tensor, rows: NDArray[np.int64]) -> SpinFlipSubspace:
        """See :class:`MolecularHamiltonian`."""
        from nnqs_lightning.hamiltonian.spin_flip_subspace import SpinFlipSubspace

        return SpinFlipSubspace(self.sector, self.plain.tables, self.n_connected, determinants.cpu(), rows)

    def _represented(self, determinants: Tensor, connected: ConnectedStates) -> tuple[ConnectedStates, Tensor]:
        """The same rows with representatives in place of their members, and which entries are left, bool [M]."""
        states, flipped = represent(connected.determinants)
        rows = connected.rows
        elements = connected.elements * (multiplicities(determinants)[rows] / multiplicities(states)).sqrt()
        if self.sector.spin_parity == 1:
            return ConnectedStates(states, elements, connected.offsets), torch.ones_like(flipped)
        elements = torch.where(flipped, -elements, elements)
        kept = is_open_shell(states)
        offsets = torch.zeros_like(connected.offsets)
        offsets[1:] = torch.bincount(rows[kept], minlength=len(determinants)).cumsum(0)
        return ConnectedStates(states[kept], elements[kept], offsets), kept

    def _device_energies(self, determinants: Tensor, log_psi: Tensor, rows: Tensor | None) -> Tensor:
        whole = expand(determinants, self.sector.spin_parity)
        log_psi = log_psi[whole.member] + whole.share.to(torch.complex128).log()
        rows = torch.arange(len(determinants), device=determinants.device) if rows is None else rows
        return self.plain._device_energies(whole.determinants, log_psi, rows)


def hamiltonian_on(integrals: MolecularIntegrals, sector: Sector) -> MolecularHamiltonian:
    """H in the basis of a sector of the integrals: determinants, or their combinations of one spin parity."""
    if sector.spin_parity:
        return SpinFlipHamiltonian(integrals, sector.spin_parity)
    return MolecularHamiltonian(integrals)
