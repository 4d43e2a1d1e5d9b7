"""Matrix elements and connected states against PySCF's FCI code."""

from __future__ import annotations

import random
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from fci_oracle import (
    MOLECULES,
    apply_hamiltonian,
    determinant_of,
    molecular_integrals,
    operator_algebra,
    random_integrals,
    string_addresses,
)
from pyscf import fci

from nnqs_lightning.chem.integrals import MolecularIntegrals
from nnqs_lightning.errors import UserError
from nnqs_lightning.fock import popcount
from nnqs_lightning.hamiltonian import MolecularHamiltonian

SECTORS = [(10, 3, 2), (14, 2, 1), (20, 2, 0), (35, 1, 1)]


@pytest.fixture(params=[*MOLECULES, *SECTORS], ids=str)
def integrals(request: pytest.FixtureRequest) -> MolecularIntegrals:
    if isinstance(request.param, str):
        return molecular_integrals(request.param)
    return random_integrals(*request.param)


def test_applying_h_equals_pyscf_contraction(integrals: MolecularIntegrals) -> None:
    hamiltonian = MolecularHamiltonian(integrals)
    determinants = hamiltonian.sector.determinants()
    generator = torch.Generator().manual_seed(1)
    psi = torch.randn(len(determinants), dtype=torch.complex128, generator=generator)
    expected = apply_hamiltonian(integrals, determinants, psi)
    matrix = hamiltonian.sparse(determinants)
    torch.testing.assert_close(torch.from_numpy(matrix @ psi.numpy()), expected, rtol=1e-11, atol=1e-10)
    local = hamiltonian.local_energies(determinants, psi.log())
    torch.testing.assert_close(local * psi, expected, rtol=1e-11, atol=1e-10)


@pytest.mark.parametrize("name", MOLECULES)
def test_dense_matrix_equals_pyscf_pspace(name: str) -> None:
    integrals = molecular_integrals(name)
    hamiltonian = MolecularHamiltonian(integrals)
    determinants = hamiltonian.sector.determinants()
    n_electrons = (integrals.n_alpha, integrals.n_beta)
    size = hamiltonian.sector.size
    addresses, expected = fci.direct_spin1.pspace(integrals.h1e, integrals.eri, integrals.n_orb, n_electrons, np=size)
    alpha, beta = string_addresses(determinants, integrals.n_orb)
    place = torch.empty(size, dtype=torch.int64)
    place[torch.from_numpy(alpha * (beta.max() + 1) + beta)] = torch.arange(size)
    order = place[torch.from_numpy(addresses.astype("int64"))]
    ours = hamiltonian.dense(determinants)[order][:, order]
    core = integrals.e_core * torch.eye(size, dtype=torch.float64)
    torch.testing.assert_close(ours - core, torch.from_numpy(expected), rtol=0, atol=1e-11)


def test_every_view_of_h_is_the_same_matrix(integrals: MolecularIntegrals) -> None:
    hamiltonian = MolecularHamiltonian(integrals)
    determinants = hamiltonian.sector.determinants()
    some = determinants[torch.randperm(len(determinants), generator=torch.Generator().manual_seed(2))[:60]]
    dense = hamiltonian.dense(some)
    bra, ket = torch.cartesian_prod(torch.arange(len(some)), torch.arange(len(some))).T
    elements = hamiltonian.matrix_elements(some[bra], some[ket]).view(len(some), -1)
    torch.testing.assert_close(elements, dense, rtol=0, atol=1e-12)
    torch.testing.assert_close(dense, dense.T, rtol=0, atol=1e-12)
    torch.testing.assert_close(hamiltonian.diagonal(some), dense.diagonal(), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("n_orb", "n_alpha", "n_beta"), [(10, 5, 4), (35, 4, 3), (65, 4, 3)])
def test_elements_equal_operator_algebra_across_words(n_orb: int, n_alpha: int, n_beta: int) -> None:
    integrals = random_integrals(n_orb, n_alpha, n_beta)
    hamiltonian = MolecularHamiltonian(integrals)
    rng = random.Random(n_orb)
    occupied = [rng.sample(range(n_orb), n) for n in (n_alpha, n_beta)]
    ket = determinant_of(occupied, n_orb)
    connected = hamiltonian.connected_states(ket)
    assert len(connected.elements) == hamiltonian.n_connected
    chosen = [0, *rng.sample(range(hamiltonian.n_connected), 40)]
    expected = [operator_algebra(integrals, connected.determinants[k], ket[0]) for k in chosen]
    torch.testing.assert_close(connected.elements[chosen], torch.tensor(expected, dtype=torch.float64))
    elements = hamiltonian.matrix_elements(connected.determinants[chosen], ket.expand(len(chosen), -1, -1))
    torch.testing.assert_close(elements, torch.tensor(expected, dtype=torch.float64))


def test_two_words_give_the_two_electron_tensor_product() -> None:
    n = 65
    integrals = random_integrals(n, 1, 1)
    hamiltonian = MolecularHamiltonian(integrals)
    determinants = hamiltonian.sector.determinants()
    psi = torch.randn(len(determinants), dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    matrix, h1e, eri = psi.view(n, n), torch.from_numpy(integrals.h1e), torch.from_numpy(integrals.eri)
    expected = h1e @ matrix + matrix @ h1e + torch.einsum("pqrs,qs->pr", eri, matrix) + integrals.e_core * matrix
    local = hamiltonian.local_energies(determinants, psi.to(torch.complex128).log())
    torch.testing.assert_close(local.real * psi, expected.flatten(), rtol=1e-11, atol=1e-10)


def test_connected_states_are_distinct_feasible_and_complete() -> None:
    hamiltonian = MolecularHamiltonian(random_integrals(9, 4, 3))
    determinants = hamiltonian.sector.determinants()[5:100:31]
    connected = hamiltonian.connected_states(determinants)
    assert connected.offsets.diff().tolist() == [hamiltonian.n_connected] * len(determinants)
    torch.testing.assert_close(connected.determinants[connected.offsets[:-1]], determinants)
    assert popcount(connected.determinants).sum(-1).unique(dim=0).tolist() == [[4, 3]]
    for row in range(len(determinants)):
        states = connected.determinants[connected.rows == row]
        assert len(states.unique(dim=0)) == len(states)
    source = determinants[connected.rows]
    moved = popcount(source ^ connected.determinants).sum((1, 2))
    assert moved.max() == 4
    torch.testing.assert_close(connected.elements, hamiltonian.matrix_elements(connected.determinants, source))


def test_local_energies_are_finite_where_amplitudes_underflow() -> None:
    hamiltonian = MolecularHamiltonian(random_integrals(6, 3, 2))
    determinants = hamiltonian.sector.determinants()[:40]
    matrix = hamiltonian.dense(determinants).to(torch.complex128)
    generator = torch.Generator().manual_seed(3)
    spread = torch.randn(len(determinants), dtype=torch.complex128, generator=generator)
    deep = spread - torch.linspace(1000, 1600, len(determinants))
    # Rows far below e^−745 of the largest: quotients of neighbours still decide.
    values = hamiltonian.local_energies(determinants, deep)
    exponent = deep[None, :] - deep[:, None]
    expected = (matrix * torch.exp(exponent)).sum(1)
    torch.testing.assert_close(values, expected, rtol=1e-10, atol=0)
    absent = torch.cat([torch.zeros(1, dtype=torch.complex128), torch.full((39,), -torch.inf, dtype=torch.complex128)])
    only = hamiltonian.local_energies(determinants, absent, rows=torch.tensor([0]))
    torch.testing.assert_close(only, matrix[0, :1])
    steep = hamiltonian.local_energies(determinants, -100.0 * torch.arange(40).to(torch.complex128))
    assert torch.view_as_real(steep).isfinite().all()


def test_wrong_determinants_are_refused() -> None:
    hamiltonian = MolecularHamiltonian(random_integrals(5, 2, 1))
    with pytest.raises(UserError, match=r"expected torch\.int64"):
        hamiltonian.diagonal(torch.zeros((3, 2, 2), dtype=torch.int64))


def test_importing_the_room_does_not_import_numba() -> None:
    code = "import sys, nnqs_lightning.hamiltonian, nnqs_lightning.vmc.local_energy; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"h1e": 1j}, "complex"),
        ({"eri": 1j}, "complex"),
        ({"h1e": np.nan}, "NaN"),
        ({"eri": np.nan}, "NaN"),
        ({"h1e": np.triu(np.ones((4, 4)))}, "not symmetric"),
        ({"eri": np.triu(np.ones((4, 4)))}, "≠"),
        ({"eri": np.inf}, "infinite"),
        ({"n_alpha": 5}, "electrons"),
    ],
)
def test_integrals_without_a_real_symmetric_hamiltonian_are_refused(change: dict[str, Any], message: str) -> None:
    sound = random_integrals(4, 2, 1)
    values = {key: getattr(sound, key) * value if key != "n_alpha" else value for key, value in change.items()}
    with pytest.raises(UserError, match=message):
        MolecularHamiltonian(replace(sound, **values))
