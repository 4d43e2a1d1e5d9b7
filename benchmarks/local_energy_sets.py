"""Determinant sets that look like sampled ones: the heaviest of a perturbative wave function, built from H alone."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from nnqs_lightning.chem import HydrogenChain, MolecularIntegrals, Molecule, read_fcidump
from nnqs_lightning.fock.lookup import DeterminantTable
from nnqs_lightning.hamiltonian import MolecularHamiltonian

DATA = Path(os.environ.get("NNQS_DATA", Path(__file__).resolve().parents[2] / "shared" / "data")) / "fcidump"
WATER = [("O", 0.0, 0.0, 0.0), ("H", 0.757, 0.586, 0.0), ("H", -0.757, 0.586, 0.0)]
NITROGEN = [("N", 0.0, 0.0, 0.0), ("N", 0.0, 0.0, 1.1)]


def integrals(name: str) -> MolecularIntegrals:
    """Integrals of a benchmark system."""
    if name == "N2 STO-3G":
        return Molecule(NITROGEN, basis="sto-3g").integrals()
    if name == "H2O 6-31G":
        return Molecule(WATER, basis="6-31g").integrals()
    if name == "N2 cc-pVDZ, frozen core":
        return Molecule(NITROGEN, basis="cc-pvdz", frozen_core=2).integrals()
    if name == "H10 STO-6G":
        return HydrogenChain(10, 1.0, basis="sto-6g").integrals()
    return read_fcidump(DATA / {"N2 cc-pVDZ": "n2_ccpvdz.FCIDUMP", "Fe2S2": "fe2s2_30e20o.FCIDUMP"}[name])


def reference(hamiltonian: MolecularHamiltonian) -> Tensor:
    """The lowest determinant that steepest descent by single and double moves finds from the aufbau one, [1, 2, W].

    In Fe2S2 the aufbau determinant lies 9 hartree above it.
    """
    best = hamiltonian.sector.aufbau()
    while True:
        reached = hamiltonian.connected_states(best).determinants
        energies = hamiltonian.diagonal(reached)
        lowest = int(energies.argmin())
        if lowest == 0:
            return best
        best = reached[lowest : lowest + 1]


@cache
def named_set(name: str, n: int, quick: bool) -> tuple[MolecularHamiltonian, Tensor, Tensor]:
    """A benchmark system and its :func:`heaviest` ``n``, at most 20,000 of them for a quick look."""
    hamiltonian = MolecularHamiltonian(integrals(name))
    return hamiltonian, *heaviest(hamiltonian, 10_000 if quick and n > 20_000 else n)


def strongest(hamiltonian: MolecularHamiltonian, n: int) -> Tensor:
    """The ``n`` determinants with the largest couplings to the reference."""
    connected = hamiltonian.connected_states(reference(hamiltonian))
    return connected.determinants[connected.elements.abs().argsort(descending=True)[:n]]


def heaviest(hamiltonian: MolecularHamiltonian, n: int) -> tuple[Tensor, Tensor]:
    """The ``n`` determinants with the largest amplitude after two rounds of first-order perturbation theory.

    Returns:
        int64 [n, 2, W] in falling order of |ψ|, and log ψ, complex128 [n].
    """
    if n >= hamiltonian.sector.size:
        determinants = hamiltonian.sector.determinants()
        return determinants, _amplitudes(hamiltonian, determinants).log()
    held = reference(hamiltonian)
    e_reference = hamiltonian.diagonal(held)[0]
    psi = torch.ones(1, dtype=torch.float64)
    for threshold in (0.0, 1e-5, 1e-5):
        table, sums = DeterminantTable(held), psi.clone()
        for part in torch.arange(min(len(held), 4 * n // hamiltonian.n_connected + 1500)).split(200):
            connected = hamiltonian.connected_states(held[part], threshold)
            place = table.insert(connected.determinants)
            sums = torch.cat([sums, sums.new_zeros(len(table) - len(sums))])
            known = place < len(held)
            terms = connected.elements * psi[part][connected.rows]
            sums.index_add_(0, place[~known], terms[~known])
        found = table.rows
        denominators = (e_reference - hamiltonian.diagonal(found[len(held) :])).clamp(max=-0.1)
        sums[len(held) :] /= denominators
        order = sums.abs().argsort(descending=True, stable=True)[:n]
        held, psi = found[order], sums[order]
        if len(held) == n and threshold:
            break
    return held, psi.to(torch.complex128).log()


def _amplitudes(hamiltonian: MolecularHamiltonian, determinants: Tensor) -> Tensor:
    """Smoothly decaying amplitudes with phases for a whole sector."""
    energies = hamiltonian.diagonal(determinants)
    phases = torch.rand(len(determinants), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return torch.polar(torch.exp(energies.min() - energies), 6.283 * phases)
