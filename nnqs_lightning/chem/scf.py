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
    """Run a self-consistent field: DIIS, then second order, then second order from other guesses.

    Args:
        mean_field: a PySCF mean field; its orbitals are those of the last attempt.
        guess: density matrix to begin with.

    Returns:
        Whether it converged.
    """
    mean_field.kernel(guess)
    if mean_field.converged:
        return True
    log.info("the self-consistent field did not converge with DIIS: trying second order")
    if _second_order(mean_field, mean_field.mo_coeff, mean_field.mo_occ):
        return True
    for other in ("hcore", "atom", "1e") if mean_field.mol.natm else ("1e",):
        density = mean_field.get_init_guess(key=other)
        mean_field.max_cycle, kept = 10, mean_field.max_cycle
        mean_field.kernel(density)
        mean_field.max_cycle = kept
        if mean_field.converged or _second_order(mean_field, mean_field.mo_coeff, mean_field.mo_occ):
            return True
    return False


def _second_order(mean_field: Any, mo_coeff: Array, mo_occ: Array) -> bool:
    newton = mean_field.newton()
    newton.verbose = 0
    newton.conv_tol = CONV_TOL
    newton.max_cycle = 100
    newton.kernel(mo_coeff, mo_occ)
    for name in ("mo_coeff", "mo_occ", "mo_energy", "e_tot", "converged"):
        setattr(mean_field, name, getattr(newton, name))
    return bool(mean_field.converged)


def follow_instabilities(mean_field: Any) -> None:
    """Leave saddle points: rotate the orbitals along internal instabilities until there is none."""
    for _ in range(MAX_STABILITY_STEPS):
        orbitals, _, stable, _ = mean_field.stability(return_status=True)
        if stable:
            return
        if not _second_order(mean_field, orbitals, mean_field.mo_occ):
            break
    log.warning("the self-consistent field is still unstable after %d rotations", MAX_STABILITY_STEPS)
