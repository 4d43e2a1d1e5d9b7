"""Random and molecular integrals, H applied by PySCF's FCI code, and H by the algebra of its operators."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from pyscf import ao2mo, fci, gto, scf
from torch import Tensor

from nnqs_lightning.chem.integrals import MolecularIntegrals
from nnqs_lightning.fock import pack, unpack

MOLECULES = {
    "H2": ("H 0 0 0; H 0 0 0.74", "6-31g", 0),
    "LiH": ("Li 0 0 0; H 0 0 1.55", "sto-3g", 0),
    "H2O": ("O 0 0 0; H 0.757 0.586 0; H -0.757 0.586 0", "sto-3g", 0),
    "CH2 triplet": ("C 0 0 0; H 0.98 0.5 0; H -0.98 0.5 0", "sto-3g", 2),
    "NH doublet cation": ("N 0 0 0; H 0 0 1.07", "sto-3g", 1),
}


@cache
def molecular_integrals(name: str) -> MolecularIntegrals:
    """Integrals of one of :data:`MOLECULES` in its RHF or ROHF orbitals."""
    atoms, basis, spin = MOLECULES[name]
    mol = gto.M(atom=atoms, basis=basis, spin=spin, charge=int("cation" in name), verbose=0)
    mean_field = scf.RHF(mol).run()
    orbitals = mean_field.mo_coeff
    n_orb = orbitals.shape[1]
    return MolecularIntegrals(
        h1e=orbitals.T @ mean_field.get_hcore() @ orbitals,
        eri=ao2mo.restore(1, ao2mo.kernel(mol, orbitals), n_orb),
        e_core=mol.energy_nuc(),
        n_alpha=mol.nelec[0],
        n_beta=mol.nelec[1],
    )


@cache
def random_integrals(n_orb: int, n_alpha: int, n_beta: int) -> MolecularIntegrals:
    """Dense random integrals with the right symmetries: no element of H vanishes by accident."""
    rng = np.random.default_rng(n_orb)
    h1e = rng.normal(size=(n_orb, n_orb))
    n_pairs = n_orb * (n_orb + 1) // 2
    pairs = rng.normal(size=(n_pairs, n_pairs))
    eri = ao2mo.restore(1, pairs + pairs.T, n_orb)
    return MolecularIntegrals(h1e=h1e + h1e.T, eri=eri, e_core=0.7, n_alpha=n_alpha, n_beta=n_beta)


def string_addresses(determinants: Tensor, n_orb: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """PySCF's address of each α and each β string: its place among strings ordered as binary numbers."""
    occupation = unpack(determinants, n_orb).numpy()
    addresses = []
    for spin in range(2):
        strings = [tuple(row[::-1]) for row in occupation[:, :, spin]]
        order = {string: place for place, string in enumerate(sorted(set(strings)))}
        addresses.append(np.array([order[string] for string in strings]))
    return addresses[0], addresses[1]


def apply_hamiltonian(integrals: MolecularIntegrals, determinants: Tensor, psi: Tensor) -> Tensor:
    """H ψ over a whole sector by PySCF's ``contract_2e``, e_core included."""
    n, n_electrons = integrals.n_orb, (integrals.n_alpha, integrals.n_beta)
    rows, columns = string_addresses(determinants, n)
    h2e = fci.direct_spin1.absorb_h1e(integrals.h1e, integrals.eri, n, n_electrons, 0.5)

    def apply_real(vector: NDArray[np.float64]) -> NDArray[np.float64]:
        matrix = np.zeros((rows.max() + 1, columns.max() + 1))
        matrix[rows, columns] = vector
        return fci.direct_spin1.contract_2e(h2e, matrix, n, n_electrons)[rows, columns]

    values = apply_real(psi.real.numpy()) + 1j * apply_real(psi.imag.numpy())
    return torch.from_numpy(values) + integrals.e_core * psi


def determinant_of(occupied: Sequence[Sequence[int]], n_orb: int) -> Tensor:
    """The determinant with the given α and β orbitals, [1, 2, W]."""
    occupation = torch.zeros((1, n_orb, 2), dtype=torch.int64)
    for spin, orbitals in enumerate(occupied):
        occupation[0, list(orbitals), spin] = 1
    return pack(occupation)


def operator_algebra(integrals: MolecularIntegrals, bra: Tensor, ket: Tensor) -> float:
    """⟨bra|H|ket⟩ by moving operators one at a time; spin orbital = (spin, orbital), all α before all β."""
    left, right = (frozenset(map(tuple, unpack(d[None], integrals.n_orb)[0].T.nonzero().tolist())) for d in (bra, ket))
    total = integrals.e_core if left == right else 0.0
    if len(right - left) > 2:
        return total
    for spin, q in right:
        for p in {p for s, p in left if s == spin}:
            sign, state = act(right, annihilate=[(spin, q)], create=[(spin, p)])
            total += integrals.h1e[p, q] * sign * (state == left)
    for spin_q, q in right:
        for spin_s, s in right:
            for p in {p for spin, p in left if spin == spin_q}:
                for r in {r for spin, r in left if spin == spin_s}:
                    sign, state = act(right, [(spin_q, q), (spin_s, s)], [(spin_s, r), (spin_q, p)])
                    total += 0.5 * integrals.eri[p, q, r, s] * sign * (state == left)
    return total


SpinOrbitals = Sequence[tuple[int, int]]


def act(state: frozenset, annihilate: SpinOrbitals, create: SpinOrbitals) -> tuple[int, frozenset]:
    """Apply annihilators, then creators, in the order given; sign 0 where one of them kills the state."""
    sign = 1
    for operators, creates in ((annihilate, False), (create, True)):
        for orbital in operators:
            if (orbital in state) == creates:
                return 0, state
            sign *= (-1) ** sum(other < orbital for other in state)
            state = state ^ {orbital}
    return sign, state
