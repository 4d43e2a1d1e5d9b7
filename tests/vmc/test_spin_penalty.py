"""S₋S₊ in local energies, against PySCF's S² on whole vectors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from pyscf.fci import cistring, spin_op
from torch import Tensor

from nnqs_lightning.ansatz.base import Ansatz
from nnqs_lightning.chem import HubbardChain
from nnqs_lightning.errors import UserError
from nnqs_lightning.fock import SampleBatch, Sector
from nnqs_lightning.fock.lookup import DeterminantTable
from nnqs_lightning.fock.spin_flip import expand
from nnqs_lightning.hamiltonian import hamiltonian_on
from nnqs_lightning.vmc.base import LocalEnergies, LocalEnergy
from nnqs_lightning.vmc.local_energy import ExactLocalEnergy, SpinPenalty, SubspaceLocalEnergy

N_ORB = 5
WEIGHT = 0.3


class RandomAnsatz(Ansatz):
    """One random amplitude for each determinant of the sector, normalised."""

    def __init__(self, sector: Sector) -> None:
        super().__init__()
        self.sector = sector
        self.table = DeterminantTable(sector.determinants())
        psi = torch.randn(sector.size, dtype=torch.complex128, generator=torch.Generator().manual_seed(2))
        self.psi = psi / psi.norm()

    def log_psi(self, determinants: Tensor) -> Tensor:
        return self.psi[self.table.find(determinants)].log()


def spin_squared(sector: Sector, determinants: Tensor, psi: Tensor) -> Tensor:
    """S² ψ on ``determinants`` by PySCF, ψ zero elsewhere."""
    strings = [cistring.make_strings(range(N_ORB), n).tolist() for n in (sector.n_alpha, sector.n_beta)]
    place = [[strings[spin].index(word) for word in determinants[:, spin, 0].tolist()] for spin in (0, 1)]
    whole = np.zeros((len(strings[0]), len(strings[1])))
    parts = []
    for part in (psi.real.numpy(), psi.imag.numpy()):
        whole[tuple(place)] = part
        parts.append(torch.from_numpy(spin_op.contract_ss(whole, N_ORB, (sector.n_alpha, sector.n_beta))[tuple(place)]))
    return torch.complex(*parts)


def penalty(sector: Sector, chosen: Tensor, inner: Callable[[], LocalEnergy]) -> tuple[Tensor, Tensor, LocalEnergies]:
    """ψ of the chosen determinants, what a penalty adds to their local energies over its weight, and these."""
    ansatz = RandomAnsatz(sector)
    integrals = HubbardChain(N_ORB, n_alpha=sector.n_alpha, n_beta=sector.n_beta).integrals()
    hamiltonian = hamiltonian_on(integrals, sector)
    determinants = sector.determinants()[chosen]
    log_psi = ansatz.log_psi(determinants)
    weights = log_psi.real.mul(2).exp()
    sample = SampleBatch(determinants, log_psi, weights / weights.sum())
    plain = inner().evaluate(hamiltonian, ansatz, sample)
    lifted = SpinPenalty(WEIGHT, inner()).evaluate(hamiltonian, ansatz, sample)
    return log_psi.exp(), (lifted.values - plain.values) / WEIGHT, lifted


@pytest.mark.parametrize("sector", [Sector(N_ORB, 3, 2), Sector(N_ORB, 2, 2), Sector(N_ORB, 3, 1)])
@pytest.mark.parametrize("inner", [ExactLocalEnergy, SubspaceLocalEnergy])
def test_the_whole_sector_feels_s_squared_less_that_of_its_lowest_spin(sector, inner):
    psi, excess, lifted = penalty(sector, torch.arange(sector.size), inner)
    spin_z = sector.spin / 2
    image = spin_squared(sector, sector.determinants(), psi)
    torch.testing.assert_close(excess, image / psi - spin_z * (spin_z + 1), atol=1e-9, rtol=1e-9)
    assert lifted.stats["local_energy/spin_squared"] == pytest.approx(torch.vdot(psi, image).real.item(), abs=1e-9)
    mean = (lifted.weights * lifted.values).sum().real.item()
    spin_excess = lifted.stats["local_energy/spin_squared"] - spin_z * (spin_z + 1)
    assert mean == pytest.approx(lifted.stats["local_energy/energy"] + WEIGHT * spin_excess, abs=1e-9)


@pytest.mark.parametrize("parity", [1, -1])
@pytest.mark.parametrize("inner", [ExactLocalEnergy, SubspaceLocalEnergy])
def test_combinations_of_one_spin_parity_feel_the_s_squared_of_their_determinants(parity, inner):
    sector = Sector(N_ORB, 2, 2, parity)
    psi, excess, _ = penalty(sector, torch.arange(sector.size), inner)
    pairs = expand(sector.determinants(), parity)
    image = spin_squared(sector, pairs.determinants, pairs.share * psi[pairs.member])[: sector.size]
    torch.testing.assert_close(excess, image / (pairs.share[: sector.size] * psi), atol=1e-9, rtol=1e-9)


def test_within_a_set_only_its_members_count():
    sector = Sector(N_ORB, 2, 2)
    chosen = torch.arange(0, sector.size, 2)
    psi, excess, _ = penalty(sector, chosen, SubspaceLocalEnergy)
    image = spin_squared(sector, sector.determinants()[chosen], psi)
    torch.testing.assert_close(excess, image / psi, atol=1e-9, rtol=1e-9)


def test_a_weight_that_lifts_nothing_is_refused():
    with pytest.raises(UserError, match=r"model\.local_energy\.weight"):
        SpinPenalty(0.0)


def test_a_hamiltonian_on_another_basis_is_refused():
    ansatz = RandomAnsatz(Sector(N_ORB, 2, 2, 1))
    hamiltonian = hamiltonian_on(HubbardChain(N_ORB, n_alpha=2, n_beta=2).integrals(), Sector(N_ORB, 2, 2))
    determinants = ansatz.sector.determinants()
    sample = SampleBatch(determinants, ansatz.log_psi(determinants), torch.ones(len(determinants)))
    for energy in (ExactLocalEnergy(), SubspaceLocalEnergy()):
        with pytest.raises(UserError, match="spin_parity"):
            energy.evaluate(hamiltonian, ansatz, sample)
