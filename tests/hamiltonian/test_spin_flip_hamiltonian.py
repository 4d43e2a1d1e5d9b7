"""H on combinations of one spin parity, against H on determinants and PySCF's singlets and triplets."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fci_oracle import molecular_integrals, random_integrals, string_addresses
from pyscf import fci

from nnqs_lightning.fock import Sector
from nnqs_lightning.fock.lookup import DeterminantTable
from nnqs_lightning.fock.spin_flip import expand
from nnqs_lightning.hamiltonian import MolecularHamiltonian, SpinFlipHamiltonian, Strategy, hamiltonian_on
from nnqs_lightning.hamiltonian.kept import KeptHamiltonian


def make(parity: int) -> tuple[SpinFlipHamiltonian, torch.Tensor]:
    """H of random integrals, and the same matrix from H on determinants."""
    integrals = random_integrals(5, 2, 2)
    hamiltonian = hamiltonian_on(integrals, Sector(5, 2, 2, parity))
    assert isinstance(hamiltonian, SpinFlipHamiltonian)
    plain = MolecularHamiltonian(integrals)
    whole, named = plain.sector.determinants(), hamiltonian.sector.determinants()
    pairs = expand(named, parity)
    basis = torch.zeros((len(whole), len(named)), dtype=torch.float64)
    basis[DeterminantTable(whole).find(pairs.determinants), pairs.member] = pairs.share
    return hamiltonian, basis.T @ plain.dense(whole) @ basis


@pytest.mark.parametrize("parity", [1, -1])
def test_every_view_of_h_is_the_matrix_between_combinations(parity):
    hamiltonian, expected = make(parity)
    named = hamiltonian.sector.determinants()
    n = len(named)
    torch.testing.assert_close(hamiltonian.dense(named), expected, atol=1e-12, rtol=0)
    torch.testing.assert_close(hamiltonian.diagonal(named), expected.diagonal(), atol=1e-12, rtol=0)
    elements = hamiltonian.matrix_elements(named.repeat_interleave(n, 0), named.repeat(n, 1, 1))
    torch.testing.assert_close(elements.view(n, n), expected, atol=1e-12, rtol=0)
    connected = hamiltonian.connected_states(named)
    columns = DeterminantTable(named).find(connected.determinants)
    assert torch.equal(columns[connected.offsets[:-1]], torch.arange(n))
    added = torch.zeros_like(expected).index_put_((connected.rows, columns), connected.elements, accumulate=True)
    torch.testing.assert_close(added, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("parity", [1, -1])
def test_local_energies_in_a_part_of_the_set_agree_for_every_strategy(parity):
    hamiltonian, expected = make(parity)
    named = hamiltonian.sector.determinants()
    generator = torch.Generator().manual_seed(1)
    chosen = torch.randperm(len(named), generator=generator)[:30]
    psi = torch.randn(30, dtype=torch.complex128, generator=generator)
    rows = torch.arange(3, 17)
    values = (expected[chosen][:, chosen].to(psi.dtype) @ psi / psi)[rows]
    log_psi = psi.log()
    for strategy in Strategy:
        found = hamiltonian.local_energies(named[chosen], log_psi, rows, strategy)
        torch.testing.assert_close(found, values, atol=1e-10, rtol=0)
    # ψ(D) so small that only logarithms hold it.
    log_psi[5] -= 1000.0
    tiny = hamiltonian.local_energies(named[chosen], log_psi, torch.tensor([5]))
    assert torch.isfinite(torch.view_as_real(tiny)).all()
    kept = KeptHamiltonian(hamiltonian, 1 << 20)
    for part in (chosen[:20], chosen):
        place = kept.update(named[part], np.arange(len(part)))
        product = kept.product(psi[: len(part)].numpy(), place, np.arange(len(part)))
        torch.testing.assert_close(
            torch.from_numpy(product), expected[part][:, part].to(psi.dtype) @ psi[: len(part)], atol=1e-10, rtol=0
        )


@pytest.mark.parametrize("parity", [1, -1])
def test_drawn_states_have_the_row_of_h_as_their_mean(parity):
    hamiltonian, expected = make(parity)
    named = hamiltonian.sector.determinants()
    mean = torch.zeros_like(expected)
    n_seeds = 400
    for seed in range(n_seeds):
        connected, is_drawn = hamiltonian.drawn_states(named, 0.8, 8, seed)
        assert len(is_drawn) == len(connected.elements)
        columns = DeterminantTable(named).find(connected.determinants)
        mean.index_put_((connected.rows, columns), connected.elements / n_seeds, accumulate=True)
    assert (mean - expected).abs().max() < 0.35  # a draw carries a few hartree


@pytest.mark.parametrize("parity", [1, -1])
def test_lowest_states_are_those_of_pyscf_with_even_and_odd_spin(parity):
    integrals = molecular_integrals("H2O")
    n_orb, n_elec = integrals.n_orb, (integrals.n_alpha, integrals.n_beta)
    hamiltonian = hamiltonian_on(integrals, Sector(n_orb, *n_elec, parity))
    named = hamiltonian.sector.determinants()
    energies, vectors = torch.linalg.eigh(hamiltonian.dense(named))
    oracle, states = fci.direct_spin1.kernel(integrals.h1e, integrals.eri, n_orb, n_elec, nroots=6)
    wanted = [k for k, c in enumerate(states) if np.allclose(c, parity * c.T, atol=1e-4)]
    assert len(wanted) >= 2
    for k, root in enumerate(wanted[:2]):
        assert energies[k].item() == pytest.approx(oracle[root] + integrals.e_core, abs=1e-8)
        spin = fci.spin_op.spin_square0(states[root], n_orb, n_elec)[0]
        assert spin == pytest.approx(0.0 if parity == 1 else 2.0, abs=1e-4)
    pairs = expand(named, parity)
    rows, columns = string_addresses(pairs.determinants, n_orb)
    ours = np.zeros_like(states[0])
    ours[rows, columns] = (pairs.share * vectors[:, 0][pairs.member]).numpy()
    assert abs(np.vdot(ours, states[wanted[0]])) == pytest.approx(1.0, abs=1e-6)
