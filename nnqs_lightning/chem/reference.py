"""Energies of established methods through PySCF, for comparison."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import fields
from math import comb, inf
from typing import Any, TypeVar

import numpy as np

from nnqs_lightning.chem.integrals import Array, MolecularIntegrals
from nnqs_lightning.chem.scf import SOLVER_FAILURES, aufbau_density, converge, mean_field_of_integrals
from nnqs_lightning.chem.system import ReferenceEnergies

log = logging.getLogger(__name__)

T = TypeVar("T")

SPIN_TOLERANCE = 1e-3
"""Largest accepted deviation of ⟨S²⟩ from S(S + 1)."""

SPIN_PENALTIES = (0.0, 0.2, 1.0)
"""Hartree per unit of ⟨S²⟩ − S(S + 1), tried in turn until a state of the right spin comes out."""

BOUND_TOLERANCE = 1e-7
"""Hartree by which an FCI energy may lie above a variational bound, for convergence's sake."""

DAVIDSON_SPACE, SMALL_DAVIDSON_SPACE, DAVIDSON_SPACE_LIMIT = 60, 20, 200_000
"""Vectors kept in a Davidson iteration, and those kept above so many determinants: near-degenerate states take many."""

MAX_CORRELATED_ORBITALS = 120
"""Coupled cluster and CISD are left out above: their integrals alone would fill the memory."""


def n_determinants(integrals: MolecularIntegrals) -> int:
    """Number of determinants of the sector."""
    return comb(integrals.n_orb, integrals.n_alpha) * comb(integrals.n_orb, integrals.n_beta)


def compute_reference_energies(
    integrals: MolecularIntegrals, max_fci_determinants: int, wfn_sym: int | None = None
) -> ReferenceEnergies:
    """HF, MP2, CISD, CCSD, CCSD(T) and FCI energies in hartree, each None where it does not converge or costs too much.

    The Hartree–Fock state is the restricted (open-shell: ROHF) solution that is found from the determinant of the
    lowest orbitals; correlation methods start from it, the open-shell ones in spin-orbital form. FCI is the lowest
    state with S = spin / 2.

    Args:
        integrals: the Hamiltonian and its sector.
        max_fci_determinants: FCI is left out above this number of determinants.
        wfn_sym: irrep of the FCI state, Molpro numbering; None for the lowest of all.
    """
    if integrals.n_alpha + integrals.n_beta == 1:
        exact = integrals.e_core + float(np.linalg.eigvalsh(integrals.h1e)[0])
        return ReferenceEnergies(*[exact] * len(fields(ReferenceEnergies)))
    mean_field = mean_field_of_integrals(integrals)
    guess = aufbau_density(integrals.n_orb, integrals.n_alpha, integrals.n_beta)
    if not converge(mean_field, guess if integrals.spin else guess.sum(axis=0)):
        log.warning("Hartree-Fock does not converge for these integrals: no HF, MP2, CISD and CCSD reference energies")
        return ReferenceEnergies(fci=fci_energy(integrals, max_fci_determinants, wfn_sym))
    hf = float(mean_field.e_tot)
    # The HF determinant has the right spin, but need not have the irrep that is asked for.
    fci = fci_energy(integrals, max_fci_determinants, wfn_sym, upper_bound=hf if wfn_sym is None else inf)
    if n_determinants(integrals) == 1:
        return ReferenceEnergies(hf, hf, hf, hf, hf, fci)
    if integrals.n_orb > MAX_CORRELATED_ORBITALS:
        log.info("no correlated reference energies: over %d orbitals", MAX_CORRELATED_ORBITALS)
        return ReferenceEnergies(hf=hf, fci=fci)
    mp2 = _attempt("MP2", _mp2, mean_field)
    cisd = _attempt("CISD", _cisd, mean_field)
    ccsd = _attempt("CCSD and CCSD(T)", _ccsd, mean_field)
    triples = None if ccsd is None else _attempt("(T)", lambda _: ccsd.ccsd_t(), mean_field)
    return ReferenceEnergies(
        hf=hf,
        mp2=mp2,
        cisd=cisd,
        ccsd=None if ccsd is None else float(ccsd.e_tot),
        ccsd_t=None if ccsd is None or triples is None else float(ccsd.e_tot + triples),
        fci=fci,
    )


def _attempt(method: str, solve: Callable[[Any], T | None], mean_field: Any) -> T | None:
    """The result of ``solve``, None with a logged reason where PySCF fails or does not converge."""
    try:
        result = solve(mean_field)
    except SOLVER_FAILURES as error:
        log.warning("%s failed (%s): no such reference energy", method, error)
        return None
    if result is None:
        log.warning("%s did not converge: no such reference energy", method)
    return result


def _mp2(mean_field: Any) -> float | None:
    from pyscf import mp

    solver = mp.MP2(mean_field)
    solver.verbose = 0
    solver.kernel(with_t2=False)
    return float(solver.e_tot) if np.isfinite(solver.e_tot) else None


def _cisd(mean_field: Any) -> float | None:
    from pyscf import ci

    solver = ci.CISD(mean_field)
    solver.verbose = 0
    solver.max_cycle = 200
    solver.kernel()
    return float(solver.e_tot) if solver.converged else None


def _ccsd(mean_field: Any) -> Any | None:
    from pyscf import cc

    solver = cc.CCSD(mean_field)
    solver.verbose = 0
    solver.max_cycle = 200
    solver.conv_tol = 1e-9
    solver.kernel()
    return solver if solver.converged else None


def fci_energy(
    integrals: MolecularIntegrals, max_determinants: int, wfn_sym: int | None = None, upper_bound: float = inf
) -> float | None:
    """Lowest energy with S = spin / 2, in hartree; None where it costs too much or no such state is found.

    ⟨S²⟩ of the ground state of the sector is checked. Where it is another spin's, a penalty pushes those up
    (``pyscf.fci.addons.fix_spin_``).

    Args:
        integrals: the Hamiltonian and its sector.
        max_determinants: None is returned above this size.
        wfn_sym: irrep of the state, Molpro numbering; None for the lowest of all.
        upper_bound: energy in hartree of a state of this spin; what comes out above is an excited state.
    """
    size = n_determinants(integrals)
    if size > max_determinants:
        log.info("no FCI reference energy: %d determinants, max_fci_determinants is %d", size, max_determinants)
        return None
    log.info("FCI reference energy of %d determinants", size)
    for penalty in SPIN_PENALTIES:
        energy = _lowest_of_spin(integrals, penalty, wfn_sym)
        if energy is not None and energy + integrals.e_core < upper_bound + BOUND_TOLERANCE:
            return energy + integrals.e_core
    log.warning("no FCI reference energy: no converged state has 2S = %d", integrals.spin)
    return None


def _lowest_of_spin(integrals: MolecularIntegrals, penalty: float, wfn_sym: int | None) -> float | None:
    from pyscf.fci import spin_op

    n_orb, n_elec = integrals.n_orb, (integrals.n_alpha, integrals.n_beta)
    target = 0.5 * integrals.spin * (0.5 * integrals.spin + 1.0)
    solver = _fci_solver(integrals, penalty, target, wfn_sym)
    starts = _start_vectors(solver, integrals)
    try:
        energies, vectors = solver.kernel(integrals.h1e, integrals.eri, n_orb, n_elec, ci0=starts, nroots=len(starts))
    except ValueError as error:  # how the singlet solver says that it met another spin
        log.info("FCI: %s", error)
        return None
    if len(starts) == 1:
        energies, vectors = [energies], [vectors]
    for energy, vector, converged in zip(energies, vectors, np.atleast_1d(solver.converged), strict=True):
        if not converged:
            return None
        if abs(spin_op.spin_square0(vector, n_orb, n_elec)[0] - target) < SPIN_TOLERANCE:
            return float(energy)
    return None


def _fci_solver(integrals: MolecularIntegrals, penalty: float, target: float, wfn_sym: int | None) -> Any:
    from pyscf.fci import addons, direct_spin0, direct_spin0_symm, direct_spin1, direct_spin1_symm

    # The spin0 solvers keep c_αβ = c_βα: half the work and no odd S, but they know no penalty.
    singlet = integrals.spin == 0 and not penalty
    if wfn_sym is None:
        solver = (direct_spin0 if singlet else direct_spin1).FCISolver(None)
    else:
        assert integrals.orbsym is not None
        solver = (direct_spin0_symm if singlet else direct_spin1_symm).FCISolver(None)
        solver.orbsym = np.array(integrals.orbsym) - 1
        solver.wfnsym = wfn_sym - 1
    solver.verbose = 0
    solver.conv_tol = 1e-10
    solver.max_cycle = 300
    solver.pspace_size = 0  # an exact preconditioner returns the vector itself and so cannot improve it
    small = n_determinants(integrals) <= DAVIDSON_SPACE_LIMIT
    solver.max_space = DAVIDSON_SPACE if small else SMALL_DAVIDSON_SPACE
    return addons.fix_spin_(solver, shift=penalty, ss=target) if penalty else solver


def _start_vectors(solver: Any, integrals: MolecularIntegrals) -> list[Array]:
    """The lowest determinant and a random vector of low energy, [n_alpha strings, n_beta strings] each.

    The random vector overlaps with states of every symmetry: from the lowest determinants alone, the Davidson iteration
    of stretched C2 or of singlet O2 ends in an excited state of their symmetry. From the random vector alone, that of
    LiCl loses the ground state. Two roots, not one, are asked for, because a single one may miss a state close by.
    """
    n_orb, n_elec = integrals.n_orb, (integrals.n_alpha, integrals.n_beta)
    diagonal = np.asarray(solver.make_hdiag(integrals.h1e, integrals.eri, n_orb, n_elec))
    diagonal = diagonal.reshape(comb(n_orb, n_elec[0]), comb(n_orb, n_elec[1]))
    lowest = np.zeros_like(diagonal)
    lowest.flat[diagonal.argmin()] = 1.0
    spread = np.random.default_rng(0).normal(size=diagonal.shape) / (diagonal - diagonal.min() + 0.3) ** 3
    vectors = [lowest, spread]
    if integrals.spin == 0:
        vectors = [vector + vector.T for vector in vectors]
    n_roots = min(len(vectors), diagonal.size)
    return [np.asarray(vector / np.linalg.norm(vector)) for vector in vectors[:n_roots]]


def determinant_energy(integrals: MolecularIntegrals) -> float:
    """Energy in hartree of the determinant with the lowest orbitals of either spin filled."""
    a, b = slice(0, integrals.n_alpha), slice(0, integrals.n_beta)
    h, j, k = np.diag(integrals.h1e), integrals.coulomb, integrals.exchange
    one = h[a].sum() + h[b].sum()
    two = 0.5 * (_square(j, k, a) + _square(j, k, b)) + j[a, b].sum()
    return float(integrals.e_core + one + two)


def _square(coulomb: Array, exchange: Array, filled: slice) -> float:
    return float((coulomb[filled, filled] - exchange[filled, filled]).sum())
