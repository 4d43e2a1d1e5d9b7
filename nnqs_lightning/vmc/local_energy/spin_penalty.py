"""Local energies of a Hamiltonian that lifts states of higher spin."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from nnqs_lightning.ansatz.base import Ansatz
from nnqs_lightning.distributed import all_gather_rows
from nnqs_lightning.errors import UserError
from nnqs_lightning.fock import SampleBatch, Sector, unpack
from nnqs_lightning.fock.spin_flip import represent
from nnqs_lightning.hamiltonian import ConnectedStates, MolecularHamiltonian
from nnqs_lightning.vmc.base import LocalEnergies, LocalEnergy
from nnqs_lightning.vmc.estimators import weighted_mean
from nnqs_lightning.vmc.final_figures.spin import spin_exchanges
from nnqs_lightning.vmc.local_energy.amplitudes import AmplitudeCache
from nnqs_lightning.vmc.local_energy.exact import ExactLocalEnergy, log_ratios, ratio_sums
from nnqs_lightning.vmc.local_energy.subspace import SubspaceLocalEnergy


class SpinPenalty(LocalEnergy):
    """Local energies of H + weight · S₋S₊, with S₋S₊ = S² − S_z (S_z + 1): zero for S = S_z, positive for higher spins.

    The sector fixes S_z = (n_alpha − n_beta) / 2, and so the lowest possible S. A state of spin S rises by
    weight · (S (S + 1) − S_z (S_z + 1)): a triplet among singlets by twice the weight. The energy logged is that of H
    with the penalty; ``local_energy/energy`` is that of H alone and ``local_energy/spin_squared`` is ⟨S²⟩.
    """

    def __init__(self, weight: float = 0.1, local_energy: LocalEnergy | None = None) -> None:
        """
        Args:
            weight: hartree per unit of ⟨S²⟩, positive.
            local_energy: local energies of H; null for those within the sampled set. S₋S₊ is taken as they take H: on
                all determinants that it reaches, or within the set.

        Raises:
            UserError: ``weight`` is not positive.
        """
        if not weight > 0:
            raise UserError(f"weight is {weight}, expected a positive number: change model.local_energy.weight")
        self.weight = weight
        self.local_energy = local_energy or SubspaceLocalEnergy()

    @torch.no_grad()
    def evaluate(self, hamiltonian: MolecularHamiltonian, ansatz: Ansatz, sample: SampleBatch) -> LocalEnergies:
        """See :class:`LocalEnergy`."""
        energies = self.local_energy.evaluate(hamiltonian, ansatz, sample)
        diagonal, exchanged = spin_raising(hamiltonian.sector, sample.determinants)
        log_psi = self._amplitudes(ansatz, sample, exchanged.determinants)
        excess = diagonal + ratio_sums(exchanged, log_ratios(exchanged, log_psi, sample.log_psi))
        spin_z = 0.5 * hamiltonian.sector.spin
        stats = {
            "local_energy/energy": weighted_mean(energies.weights, energies.values).real.item(),
            "local_energy/spin_squared": spin_z * (spin_z + 1) + weighted_mean(energies.weights, excess).real.item(),
        }
        return replace(
            energies,
            values=energies.values + self.weight * excess,
            stats={**energies.stats, **stats},
            diagonal=None if energies.diagonal is None else energies.diagonal + self.weight * diagonal,
        )

    def _amplitudes(self, ansatz: Ansatz, sample: SampleBatch, determinants: Tensor) -> Tensor:
        """log ψ of ``determinants``, complex128 [M]; −inf outside the set where the energies leave that out."""
        from nnqs_lightning.fock.lookup import DeterminantTable

        members, _ = all_gather_rows(sample.determinants)
        log_psi, _ = all_gather_rows(sample.log_psi)
        if isinstance(self.local_energy, ExactLocalEnergy):
            inner = self.local_energy
            return AmplitudeCache(ansatz, members, log_psi, inner.max_chunk, inner.cache_bytes).log_psi(determinants)
        position = DeterminantTable(members).find(determinants)
        vanishing = torch.complex(torch.full_like(log_psi.real[:1], -torch.inf), torch.zeros_like(log_psi.real[:1]))
        return torch.cat([log_psi, vanishing])[position]


def spin_raising(sector: Sector, determinants: Tensor) -> tuple[Tensor, ConnectedStates]:
    """S₋S₊ on determinants or, where the sector has a spin parity, on the combinations that they represent.

    Returns:
        The number of β electrons alone in their orbital, float64 [N], and the states with one such electron and an α
        electron alone in another orbital exchanged, with their matrix elements. The diagonal is the first and those of
        the second that are D itself, as happens with combinations.
    """
    occupation = unpack(determinants.cpu(), sector.n_orb)
    rows, states, signs = spin_exchanges(occupation)
    elements = -signs
    if sector.spin_parity:
        states, flipped = represent(states)
        elements = torch.where(flipped, sector.spin_parity * elements, elements)
    offsets = torch.zeros(len(determinants) + 1, dtype=torch.int64)
    offsets[1:] = torch.bincount(rows, minlength=len(determinants)).cumsum(0)
    alone = (sector.n_beta - occupation.prod(-1).sum(-1)).double()
    device = determinants.device
    return alone.to(device), ConnectedStates(states.to(device), elements.to(device), offsets.to(device))
