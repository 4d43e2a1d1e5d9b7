"""Self-consistent fields through PySCF, which is imported only when one is asked for."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nnqs_lightning.chem.geometry import Atom
from nnqs_lightning.chem.integrals import Array, MolecularIntegrals
from nnqs_lightning.errors import UserError

log = logging.getLogger(__name__)

CONV_TOL = 1e-10
"""Energy change, in hartree, below which a self-consistent field has converged."""

MAX_STABILITY_STEPS = 5

SOLVER_FAILURES = (np.linalg.LinAlgError, ArithmeticError, AttributeError, IndexError, ValueError)
"""What PySCF's iterative solvers raise when they diverge: singular DIIS matrices (as an AttributeError with NumPy 2),
overflows and empty arrays."""


def build_mole(atoms: list[Atom], unit: str, basis: str, charge: int, spin: int, symmetry: bool | str) -> Any:
    """The `pyscf.gto.Mole`. Linear molecules get the largest Abelian subgroup of their group.

    Raises:
        UserError: a basis that PySCF lacks for one of the elements, or a point group that the molecule has not.
    """
    from pyscf import gto
    from pyscf.lib.exceptions import BasisNotFoundError, PointGroupSymmetryError

    mole = gto.Mole(atom=atoms, unit=unit, basis=basis, charge=charge, spin=spin, symmetry=symmetry, verbose=0)
    try:
        mole.build(parse_arg=False, dump_input=False)
        if symmetry and mole.groupname in ("Dooh", "Coov", "SO3"):
            mole.symmetry = "C2v" if mole.groupname == "Coov" else "D2h"
            mole.build(parse_arg=False, dump_input=False)
    except BasisNotFoundError as error:
        raise UserError(
            f"no basis '{basis}' for these elements ({_one_line(error)}): change model.system.basis"
        ) from None
    except (PointGroupSymmetryError, AttributeError, KeyError) as error:
        if not symmetry:
            raise
        raise UserError(
            f"point group '{symmetry}' does not fit the molecule ({_one_line(error)}): change model.system.symmetry"
        ) from None
    return mole


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def mole_of_integrals(integrals: MolecularIntegrals) -> Any:
    """A `pyscf.gto.Mole` without atoms, for solvers that are handed integrals."""
    from pyscf import gto

    mole = gto.Mole(verbose=0, spin=integrals.spin)
    mole.nelectron = integrals.n_alpha + integrals.n_beta
    mole.incore_anyway = True
    mole.build(parse_arg=False, dump_input=False)
    return mole


def mean_field_of_integrals(integrals: MolecularIntegrals) -> Any:
    """An unsolved RHF or ROHF over given integrals, whose orbitals serve as atomic orbitals."""
    from pyscf import ao2mo, scf

    mole = mole_of_integrals(integrals)
    mean_field = scf.RHF(mole) if integrals.spin == 0 else scf.ROHF(mole)
    mean_field.get_hcore = lambda *_: integrals.h1e
    mean_field.get_ovlp = lambda *_: np.eye(integrals.n_orb)
    mean_field.energy_nuc = lambda *_: integrals.e_core
    mean_field._eri = ao2mo.restore(8, integrals.eri, integrals.n_orb)
    mean_field.conv_tol = CONV_TOL
    return mean_field


def aufbau_density(n_orb: int, n_alpha: int, n_beta: int) -> NDArray[np.float64]:
    """[2, n_orb, n_orb] α and β density matrices with the lowest orbitals filled."""
    filled = np.arange(n_orb)
    return np.stack([np.diag((filled < n).astype(np.float64)) for n in (n_alpha, n_beta)])


def converge(mean_field: Any, guess: Array | None = None) -> bool:
    """Run a self-consistent field: DIIS, then second order, then both from other guesses.

    The orbitals come back with the doubly occupied ones first, then the singly occupied, then the empty ones, each
    by orbital energy: PySCF's correlation methods take that for granted, and ROHF need not end so.

    Args:
        mean_field: a PySCF mean field; its orbitals are those of the last attempt.
        guess: density matrix to begin with.

    Returns:
        Whether it converged.
    """
    for key in (None, "hcore", "atom") if mean_field.mol.natm else (None, "hcore"):
        if _first_order(mean_field, guess if key is None else mean_field.get_init_guess(key=key)):
            break
        log.info("the self-consistent field did not converge with DIIS: trying second order")
        if mean_field.mo_coeff is not None and _second_order(mean_field, mean_field.mo_coeff, mean_field.mo_occ):
            break
    if not mean_field.converged:
        return False
    _sort_by_occupation(mean_field)
    return True


def _sort_by_occupation(mean_field: Any) -> None:
    from pyscf import lib

    order = np.lexsort((mean_field.mo_energy, -mean_field.mo_occ))
    mean_field.mo_coeff = mean_field.mo_coeff[:, order]
    mean_field.mo_occ = mean_field.mo_occ[order]
    energies = np.asarray(mean_field.mo_energy)[order]
    fock = mean_field.get_fock()
    if hasattr(fock, "focka"):  # ROHF: perturbation theory needs the energies of either spin
        by_spin = (np.diag(mean_field.mo_coeff.T @ part @ mean_field.mo_coeff) for part in (fock.focka, fock.fockb))
        energies = lib.tag_array(energies, **dict(zip(("mo_ea", "mo_eb"), by_spin, strict=True)))
    mean_field.mo_energy = energies


def _first_order(mean_field: Any, guess: Array | None) -> bool:
    try:
        mean_field.kernel(guess)
    except SOLVER_FAILURES as error:
        log.info("the self-consistent field broke off: %s", error)
        mean_field.converged = False
    return bool(mean_field.converged)


def _second_order(mean_field: Any, mo_coeff: Array, mo_occ: Array) -> bool:
    newton = mean_field.newton()
    newton.verbose = 0
    newton.conv_tol = CONV_TOL
    newton.max_cycle = 100
    try:
        newton.kernel(mo_coeff, mo_occ)
    except SOLVER_FAILURES as error:
        log.info("the self-consistent field broke off: %s", error)
        return False
    for name in ("mo_coeff", "mo_occ", "mo_energy", "e_tot", "converged"):
        setattr(mean_field, name, getattr(newton, name))
    return bool(mean_field.converged)


def follow_instabilities(mean_field: Any) -> bool:
    """Leave saddle points: rotate the orbitals along internal instabilities until there is none.

    Returns:
        Whether the last field converged.
    """
    for _ in range(MAX_STABILITY_STEPS):
        orbitals, _, stable, _ = mean_field.stability(return_status=True)
        if stable:
            return True
        if not converge(mean_field, mean_field.make_rdm1(orbitals, mean_field.mo_occ)):
            return False
    log.warning("the self-consistent field is still unstable after %d rotations", MAX_STABILITY_STEPS)
    return True
