"""Wave functions of CISD, MP2 and CCSD as determinants with coefficients, for a supervised start and for entropies.

All are expansions about the determinant of the lowest orbitals, in the orbitals of the integrals as they are.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from nnqs_lightning.chem.integrals import Array, MolecularIntegrals
from nnqs_lightning.chem.scf import SOLVER_FAILURES, aufbau_density, mean_field_of_integrals
from nnqs_lightning.errors import UserError

log = logging.getLogger(__name__)

Occupations = NDArray[np.uint8]

MAX_CYCLE = 200


@dataclass(frozen=True)
class CIVector:
    """|Ψ⟩ = Σ_D c_D |D⟩ with |D⟩ = Π_{p∈α} a†_pα Π_{q∈β} a†_qβ |vac⟩, orbitals rising: PySCF's phase convention."""

    occupations: Occupations
    """[n_determinants, n_orb, 2], the last axis is (α, β)."""
    coefficients: Array
    """[n_determinants], normalised, largest modulus first; that one is positive."""

    def truncated(self, n_determinants: int) -> CIVector:
        """The ``n_determinants`` determinants of largest weight, normalised."""
        kept = self.coefficients[:n_determinants]
        return CIVector(self.occupations[:n_determinants], kept / np.linalg.norm(kept))


@dataclass(frozen=True)
class Excitations:
    """Σ_k t_k Π a†_a a_i …: excitation operators in spin orbitals, numbered p for (p, α) and n_orb + p for (p, β)."""

    annihilated: NDArray[np.int64]
    """[n_excitations, 2]; a single excitation has −1 in the second place."""
    created: NDArray[np.int64]
    """[n_excitations, 2]"""
    amplitudes: Array
    """[n_excitations] of a†_a a†_b a_j a_i for annihilated (i, j) and created (a, b)."""


def cisd_vector(integrals: MolecularIntegrals) -> CIVector:
    """The CISD ground state.

    Raises:
        UserError: PySCF's solver fails.
    """
    from pyscf import ci

    solver = _solve(ci.CISD, integrals, "CISD")
    reference, *amplitudes = solver.cisdvec_to_amplitudes(solver.ci)
    operators = _excitations(integrals, *amplitudes)
    start = _reference(integrals)
    excited = _apply(operators, start, np.ones(1), threshold=0.0)
    return _collect([(start, np.array([float(reference)])), excited])


def cluster_vector(
    integrals: MolecularIntegrals, method: Literal["mp2", "ccsd"] = "ccsd", order: int = 2, threshold: float = 1e-6
) -> CIVector:
    """exp(T) on the reference determinant, with T of first-order perturbation theory (MP2) or of CCSD.

    Args:
        integrals: the Hamiltonian; best in Hartree–Fock orbitals, where the reference dominates.
        method: where T comes from.
        order: last power of T that is kept. 1 is linear; 2 has ½ T1² and the disconnected quadruples ½ T2².
        threshold: products of amplitudes below this modulus are left out.

    Raises:
        UserError: PySCF's solver fails or does not converge: the reference determinant is a poor start.
    """
    from pyscf import cc, mp

    solver = _solve({"mp2": mp.MP2, "ccsd": cc.CCSD}[method], integrals, method.upper())
    operators = _excitations(integrals, getattr(solver, "t1", None), solver.t2)
    term = (_reference(integrals), np.ones(1))
    terms = [term]
    for power in range(1, order + 1):
        occupations, coefficients = _apply(operators, *term, threshold=threshold * power)
        term = (occupations, coefficients / power)
        terms.append(term)
    return _collect(terms)


def _solve(method: Any, integrals: MolecularIntegrals, name: str) -> Any:
    """A PySCF correlation method, solved about the determinant of the lowest orbitals."""
    mean_field = mean_field_of_integrals(integrals)
    n_orb, n_alpha, n_beta = integrals.n_orb, integrals.n_alpha, integrals.n_beta
    density = aufbau_density(n_orb, n_alpha, n_beta)
    if integrals.spin:
        mean_field = mean_field.to_uhf()
        mean_field.mo_coeff = np.stack([np.eye(n_orb)] * 2)
        mean_field.mo_occ = np.array([np.diag(spin) for spin in density])
        fock = mean_field.get_fock(dm=density)
        mean_field.mo_energy = np.array([np.diag(spin) for spin in fock])
    else:
        density = density.sum(axis=0)
        mean_field.mo_coeff, mean_field.mo_occ = np.eye(n_orb), np.diag(density)
        mean_field.mo_energy = np.diag(mean_field.get_fock(dm=density))
    mean_field.e_tot = mean_field.energy_tot(density)
    mean_field.converged = True
    solver = method(mean_field)
    solver.verbose, solver.max_cycle = 0, MAX_CYCLE
    try:
        solver.kernel()
    except SOLVER_FAILURES as error:
        raise UserError(f"{name} fails ({error}): the lowest orbitals make no good reference determinant") from None
    # MP2 is not iterative in canonical orbitals and then has nothing to say about convergence.
    if name == "CCSD" and not solver.converged:
        raise UserError("CCSD does not converge about the lowest orbitals: use CISD instead")
    if name == "CISD" and not solver.converged:
        log.warning("CISD did not converge; its last vector is used")
    return solver


def _excitations(integrals: MolecularIntegrals, singles: Any, doubles: Any) -> Excitations:
    """Spin-orbital operators from PySCF's amplitudes [i, a] and [i, j, a, b], restricted or by spin (αα, αβ, ββ)."""
    if isinstance(doubles, tuple):
        aa, ab, bb = doubles
        a, b = (None, None) if singles is None else singles
    else:
        aa = bb = doubles - doubles.transpose(1, 0, 2, 3)
        ab, a, b = doubles, singles, singles
    n, n_alpha, n_beta = integrals.n_orb, integrals.n_alpha, integrals.n_beta
    parts: list[tuple[Any, ...]] = []
    for offset, occupied, t1, t2 in ((0, n_alpha, a, aa), (n, n_beta, b, bb)):
        if t1 is not None and t1.size:
            i, virtual = np.indices(t1.shape).reshape(2, -1)
            none = np.full_like(i, -1)
            parts.append((offset + i, none, offset + occupied + virtual, none, t1.ravel()))
        i, j, first, second = np.indices(t2.shape).reshape(4, -1)
        once = (i < j) & (first < second)
        rows = (offset + i, offset + j, offset + occupied + first, offset + occupied + second, t2.ravel())
        parts.append(tuple(row[once] for row in rows))
    i, j, first, second = np.indices(ab.shape).reshape(4, -1)
    parts.append((i, n + j, n_alpha + first, n + n_beta + second, ab.ravel()))
    i, j, first, second, amplitudes = (np.concatenate(column) for column in zip(*parts, strict=True))
    if not np.isfinite(amplitudes).all():
        raise UserError("infinite amplitudes: the lowest orbitals make no good reference determinant, use CISD instead")
    by_size = np.argsort(-np.abs(amplitudes), kind="stable")
    by_size = by_size[amplitudes[by_size] != 0.0]
    return Excitations(
        np.stack([i, j], axis=1)[by_size], np.stack([first, second], axis=1)[by_size], amplitudes[by_size]
    )


def _reference(integrals: MolecularIntegrals) -> Occupations:
    """[1, 2 n_orb] occupation of the lowest spin orbitals, all α before all β."""
    orbital = np.arange(integrals.n_orb)
    return np.concatenate([orbital < integrals.n_alpha, orbital < integrals.n_beta])[None].astype(np.uint8)


def _apply(
    operators: Excitations, occupations: Occupations, coefficients: Array, threshold: float
) -> tuple[Occupations, Array]:
    """T |Ψ⟩, leaving out products of amplitude and coefficient up to ``threshold``."""
    sizes = np.abs(operators.amplitudes)
    parts = []
    for occupation, coefficient in zip(occupations, coefficients, strict=True):
        n_large = int(np.searchsorted(-sizes, -threshold / abs(coefficient))) if threshold else len(sizes)
        annihilated, created = operators.annihilated[:n_large], operators.created[:n_large]
        # Index −1 marks the absent half of a single excitation: it is always there to be moved.
        filled, empty = np.append(occupation, 1), np.append(occupation, 0)
        possible = (filled[annihilated] == 1).all(axis=1) & (empty[created] == 0).all(axis=1)
        excited, signs = _excite(occupation, annihilated[possible], created[possible])
        parts.append((excited, coefficient * signs * operators.amplitudes[:n_large][possible]))
    return _merge([part for part in parts if len(part[1])] or [(occupations[:0], coefficients[:0])])


def _excite(
    occupation: Occupations, annihilated: NDArray[np.int64], created: NDArray[np.int64]
) -> tuple[Occupations, Array]:
    """Determinants and signs of a†_a a†_b a_j a_i |D⟩ = (a†_a a_i)(a†_b a_j) |D⟩ for every row (i, j), (a, b)."""
    rows = np.arange(len(annihilated))
    excited = np.repeat(occupation[None], len(rows), axis=0)
    passed = np.zeros(len(rows), dtype=np.int64)
    for half in (1, 0):
        source, target = annihilated[:, half], created[:, half]
        present = source >= 0
        at = rows[present]
        below = np.cumsum(excited[at], axis=1, dtype=np.int64) - excited[at]
        position = np.arange(len(at))
        excited[at, source[present]] = 0
        excited[at, target[present]] = 1
        # The operators pass everything between the two orbitals; below counts the source itself as well.
        low, high = np.sort([source[present], target[present]], axis=0)
        passed[at] += below[position, high] - below[position, low] - (source < target)[present]
    return excited, np.where(passed % 2, -1.0, 1.0)


def _merge(parts: list[tuple[Occupations, Array]]) -> tuple[Occupations, Array]:
    """Add up the coefficients of equal determinants."""
    occupations = np.concatenate([part[0] for part in parts])
    coefficients = np.concatenate([part[1] for part in parts])
    keys = row_keys(occupations)
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    return occupations[first], np.asarray(np.bincount(inverse.ravel(), coefficients, len(first)), dtype=np.float64)


def row_keys(occupations: Occupations) -> NDArray[np.void]:
    """One comparable key for each row of 0/1 entries."""
    packed = np.ascontiguousarray(np.packbits(occupations, axis=1))
    return packed.view([("", np.void, packed.shape[1])]).ravel()["f0"]


def _collect(terms: list[tuple[Occupations, Array]]) -> CIVector:
    occupations, coefficients = _merge(terms)
    order = np.argsort(-np.abs(coefficients), kind="stable")
    order = order[coefficients[order] != 0.0]
    spins = occupations.reshape(len(occupations), 2, -1).transpose(0, 2, 1)
    scale = np.copysign(np.linalg.norm(coefficients), coefficients[order[0]])
    return CIVector(np.ascontiguousarray(spins[order]), coefficients[order] / scale)
