"""Real systems: a hundred thousand determinants in bounded memory, against PySCF's own matrix elements."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from pyscf import fci
from torch import Tensor

from nnqs_lightning.chem import MolecularIntegrals, read_fcidump
from nnqs_lightning.fock import popcount, unpack
from nnqs_lightning.hamiltonian import MolecularHamiltonian

N = 100_000


def random_walk(hamiltonian: MolecularHamiltonian, n: int) -> Tensor:
    """``n`` determinants around the aufbau one: its connected states, then those of a random choice of them."""
    generator = torch.Generator().manual_seed(0)
    shell = hamiltonian.connected_states(hamiltonian.sector.aufbau()).determinants
    while len(shell) < n:
        centres = shell[torch.randperm(len(shell), generator=generator)[:40]]
        shell = torch.cat([shell, hamiltonian.connected_states(centres).determinants])
        keys = shell.flatten(1).numpy()
        _, first = np.unique(keys, axis=0, return_index=True)
        shell = shell[np.sort(first)]
    return shell[:n]


def pyscf_element(integrals: MolecularIntegrals, left: NDArray[np.int64], right: NDArray[np.int64]) -> float:
    """One element by PySCF's contraction over the orbitals involved.

    Orbitals that both determinants leave empty do not matter; those that both fill twice become a frozen core, moved
    in front of the others at the price of a sign.
    """
    electrons = left.sum(1) + right.sum(1)
    filled, active = np.flatnonzero(electrons == 4), np.flatnonzero((electrons > 0) & (electrons < 4))
    h1e, eri = integrals.h1e, integrals.eri
    coulomb = np.einsum("pqii->pq", eri[:, :, filled][..., filled])
    exchange = np.einsum("piiq->pq", eri[:, filled][:, :, filled])
    field = h1e + 2 * coulomb - exchange
    core = integrals.e_core + (h1e + field)[filled, filled].sum()
    n_electrons = tuple(int(n) for n in left[active].sum(0))
    if not sum(n_electrons):
        return core
    n = len(active)
    h2e = fci.direct_spin1.absorb_h1e(
        field[np.ix_(active, active)], eri[np.ix_(active, active, active, active)], n, n_electrons, 0.5
    )
    vector = np.zeros([fci.cistring.num_strings(n, count) for count in n_electrons])
    bra, ket = (address(determinant[active], n_electrons) for determinant in (left, right))
    vector[ket] = 1.0
    element = fci.direct_spin1.contract_2e(h2e, vector, n, n_electrons)[bra] + core * (bra == ket)
    return element * parity(left, filled, active) * parity(right, filled, active)


def address(occupation: NDArray[np.int64], n_electrons: tuple[int, ...]) -> tuple[int, int]:
    """PySCF's place of a determinant in a CI matrix."""
    n = len(occupation)
    bits = [sum(1 << int(p) for p in np.flatnonzero(occupation[:, spin])) for spin in (0, 1)]
    return tuple(fci.cistring.str2addr(n, n_electrons[spin], bits[spin]) for spin in (0, 1))


def parity(occupation: NDArray[np.int64], filled: NDArray[np.int64], active: NDArray[np.int64]) -> int:
    """Sign of moving the operators of ``filled`` orbitals before those of ``active`` ones, within each spin."""
    crossings = sum(int(occupation[active[active < f]].sum()) for f in filled)
    return 1 - 2 * (crossings & 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fe2s2_30e20o", "n2_ccpvdz"])
def test_many_determinants_against_pyscf_elements(name: str, fcidump_dir: Path) -> None:
    integrals = read_fcidump(fcidump_dir / f"{name}.FCIDUMP")
    hamiltonian = MolecularHamiltonian(integrals)
    determinants = random_walk(hamiltonian, N)
    generator = torch.Generator().manual_seed(1)
    log_psi = torch.randn(N, dtype=torch.complex128, generator=generator)
    values = hamiltonian.local_energies(determinants, log_psi)
    psi = log_psi.exp()
    # Few open shells, so that PySCF's oracle stays small.
    open_shells = (determinants[:, 0] ^ determinants[:, 1]).squeeze(1)
    few_open = torch.nonzero(popcount(open_shells) <= 4).squeeze(1)
    rows = few_open[torch.randperm(len(few_open), generator=generator)[:8]]
    whole = [hamiltonian.matrix_elements(determinants[row].expand_as(determinants), determinants) for row in rows]
    expected = torch.stack(whole).to(psi.dtype) @ psi / psi[rows]
    torch.testing.assert_close(values[rows], expected, rtol=1e-10, atol=1e-9)
    # Half a thousand elements of these rows, from either system.
    connected = hamiltonian.connected_states(determinants[rows])
    chosen = torch.randperm(len(connected.elements), generator=generator)[:500]
    bras = unpack(determinants[rows][connected.rows[chosen]], integrals.n_orb).numpy()
    kets = unpack(connected.determinants[chosen], integrals.n_orb).numpy()
    elements = [pyscf_element(integrals, bra, ket) for bra, ket in zip(bras, kets, strict=True)]
    torch.testing.assert_close(
        connected.elements[chosen], torch.tensor(elements, dtype=torch.float64), rtol=0, atol=1e-10
    )
