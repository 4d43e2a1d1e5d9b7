"""Molecules through PySCF."""

from __future__ import annotations

import os
from typing import Any, Literal

import numpy as np

from nnqs_lightning.chem.active_space import ActiveSpace, partition, reduce_integrals
from nnqs_lightning.chem.cache import cache_key, cached, dump_integrals, load_integrals
from nnqs_lightning.chem.cached import CachedSystem
from nnqs_lightning.chem.geometry import Atom, atomic_number, checked_atoms, core_orbitals
from nnqs_lightning.chem.integrals import Array, MolecularIntegrals
from nnqs_lightning.chem.orbital_features import spatial_features
from nnqs_lightning.errors import UserError

PHASE_TOLERANCE = 1e-6
"""Orbital coefficients whose moduli differ by less count as equal when the sign of an orbital is fixed."""


class Molecule(CachedSystem):
    """A molecule in a Gaussian basis, in its RHF (open shell: ROHF) orbitals.

    Args:
        atoms: list of [symbol, x, y, z], or the path of an .xyz file.
        unit: of the coordinates; an .xyz file is in angstrom as a rule.
        basis: any that PySCF knows, such as sto-3g, 6-31g or cc-pvdz.
        charge: of the molecule, in elementary charges.
        spin: 2S, the number of unpaired electrons.
        symmetry: whether orbitals are labelled by the irreps of the point group, or the name of the group to use.
            A group with degenerate irreps is replaced by its largest Abelian subgroup.
        wfn_sym: irrep of the target state, 1 … 8 in Molpro's numbering; needs symmetry. Left out, the target has the
            irrep of the determinant of the lowest orbitals, and the FCI energy is that of the lowest state of all.
        frozen_core: number of lowest orbitals to keep doubly occupied, or `auto` for the noble-gas core of each atom.
        active_space: active electrons and orbitals, instead of a frozen core.
        stability: whether to leave Hartree-Fock saddle points for a lower, stable solution.
        max_fci_determinants: the FCI energy is computed up to this number of determinants.
        name: for logs and run folders; left out, the formula and the basis.

    Raises:
        UserError: an unknown element, a missing .xyz file, an electron number that contradicts spin, an active space
            that does not fit.
    """

    def __init__(
        self,
        atoms: list[tuple[str, float, float, float]] | str | os.PathLike[str],
        unit: Literal["angstrom", "bohr"] = "angstrom",
        basis: str = "sto-3g",
        charge: int = 0,
        spin: int = 0,
        symmetry: bool | str = False,
        wfn_sym: int | None = None,
        frozen_core: int | Literal["auto"] = 0,
        active_space: ActiveSpace | None = None,
        stability: bool = False,
        max_fci_determinants: int = 2_000_000,
        name: str | None = None,
    ) -> None:
        super().__init__(max_fci_determinants, wfn_sym)
        self.atoms: list[Atom] = checked_atoms(atoms if isinstance(atoms, list) else os.fspath(atoms))
        self.unit = unit
        self.basis = basis
        self.charge = charge
        self.spin = spin
        self.symmetry = symmetry
        self.frozen_core = frozen_core
        self.active_space = active_space
        self.stability = stability
        self.name = name or f"{formula(self.atoms)}_{basis}"
        self._check()

    def _check(self) -> None:
        if self.unit not in ("angstrom", "bohr"):
            raise UserError(f"model.system.unit is '{self.unit}': expected angstrom or bohr")
        n_electrons = sum(atomic_number(symbol) for symbol, *_ in self.atoms) - self.charge
        if n_electrons < 1:
            raise UserError(
                f"{self.name} with charge {self.charge} has {n_electrons} electrons: change model.system.charge"
            )
        if self.spin < 0 or self.spin > n_electrons or (n_electrons - self.spin) % 2:
            parity = "odd" if n_electrons % 2 else "even"
            raise UserError(
                f"model.system.spin is {self.spin} (2S) for {n_electrons} electrons: expected an {parity} number from "
                f"{n_electrons % 2} to {n_electrons}; or change model.system.charge"
            )
        if self.wfn_sym is not None and not self.symmetry:
            raise UserError("model.system.wfn_sym needs the irreps of the orbitals: set model.system.symmetry to true")
        if isinstance(self.frozen_core, int) and self.frozen_core < 0:
            raise UserError(f"model.system.frozen_core is {self.frozen_core}: expected 0 or more, or auto")
        if self.active_space is not None:
            if self.frozen_core:
                raise UserError(
                    "model.system.frozen_core and model.system.active_space exclude each other: leave one out"
                )
            self.active_space.check(n_electrons, self.spin)

    def _make_integrals(self) -> MolecularIntegrals:
        key = cache_key(
            {
                "features": 1,
                "atoms": self.atoms,
                "unit": self.unit,
                "basis": self.basis.lower(),
                "charge": self.charge,
                "spin": self.spin,
                "symmetry": self.symmetry,
                "stability": self.stability,
                "frozen_core": self.frozen_core,
                "active_space": None if self.active_space is None else vars(self.active_space),
            }
        )
        return cached(f"{key}.integrals.npz", self._solve, dump_integrals, load_integrals, f"integrals of {self.name}")

    def _solve(self) -> MolecularIntegrals:
        from nnqs_lightning.chem import scf

        mole = scf.build_mole(self.atoms, self.unit, self.basis, self.charge, self.spin, self.symmetry)
        mean_field = mole.RHF() if self.spin == 0 else mole.ROHF()
        mean_field.conv_tol = scf.CONV_TOL
        if not scf.converge(mean_field) or (self.stability and not scf.follow_instabilities(mean_field)):
            raise UserError(
                f"Hartree-Fock does not converge for {self.name}, with DIIS or second order, from any start: "
                "check model.system.atoms, .unit, .spin and .basis"
            )
        whole = _integrals_over_orbitals(mean_field)
        n_core = self._n_core(mole)
        return reduce_integrals(whole, *partition(whole.n_orb, whole.n_alpha, whole.n_beta, n_core, self.active_space))

    def _n_core(self, mole: Any) -> int:
        if self.frozen_core != "auto":
            return self.frozen_core
        # Electrons inside an effective core potential are not there to be frozen.
        replaced = sum(mole.atom_nelec_core(i) for i in range(mole.natm)) // 2
        return max(0, sum(core_orbitals(symbol) for symbol, *_ in self.atoms) - replaced)


class HydrogenChain(Molecule):
    """Equally spaced hydrogen atoms in a row.

    Args:
        n_atoms: number of atoms.
        spacing: distance between neighbours.
        unit: of the spacing.
        basis: any that PySCF knows.
        max_fci_determinants: the FCI energy is computed up to this number of determinants.
    """

    def __init__(
        self,
        n_atoms: int,
        spacing: float = 1.8,
        unit: Literal["angstrom", "bohr"] = "bohr",
        basis: str = "sto-6g",
        max_fci_determinants: int = 2_000_000,
    ) -> None:
        if n_atoms < 1 or not spacing > 0.0:
            raise UserError(
                f"model.system.n_atoms is {n_atoms} and model.system.spacing {spacing}: expected positive numbers"
            )
        super().__init__(
            atoms=[("H", 0.0, 0.0, i * spacing) for i in range(n_atoms)],
            unit=unit,
            basis=basis,
            spin=n_atoms % 2,
            max_fci_determinants=max_fci_determinants,
            name=f"H{n_atoms}_{basis}",
        )


def formula(atoms: list[Atom]) -> str:
    """Chemical formula, elements in order of appearance: H2O is written OH2 when oxygen comes first."""
    symbols = [symbol for symbol, *_ in atoms]
    counts = {symbol: symbols.count(symbol) for symbol in symbols}
    return "".join(f"{symbol}{count if count > 1 else ''}" for symbol, count in counts.items())


def _integrals_over_orbitals(mean_field: Any) -> MolecularIntegrals:
    from pyscf import ao2mo

    mole = mean_field.mol
    coefficients = fix_phases(np.asarray(mean_field.mo_coeff))
    n_orb = coefficients.shape[1]
    h1e = coefficients.T @ mean_field.get_hcore() @ coefficients
    eri = mean_field._eri if mean_field._eri is not None else mole
    n_alpha, n_beta = mole.nelec
    return MolecularIntegrals(
        h1e=0.5 * (h1e + h1e.T),
        eri=ao2mo.restore(1, ao2mo.kernel(eri, coefficients, compact=True), n_orb),
        e_core=float(mole.energy_nuc()),
        n_alpha=n_alpha,
        n_beta=n_beta,
        orbsym=_molpro_irreps(mole, coefficients) if mole.symmetry else None,
        mo_energy=np.asarray(mean_field.mo_energy),
        mo_coeff=coefficients,
        point_group=mole.groupname if mole.symmetry else None,
        orbital_features=spatial_features(mole, coefficients),
    )


def fix_phases(coefficients: Array) -> Array:
    """Orbitals [n_ao, n_orb] with the first of their largest coefficients positive."""
    size = np.abs(coefficients)
    first = np.argmax(size > size.max(axis=0) - PHASE_TOLERANCE, axis=0)
    signs = np.sign(coefficients[first, np.arange(coefficients.shape[1])])
    return np.ascontiguousarray(coefficients * signs)


def _molpro_irreps(mole: Any, coefficients: Array) -> tuple[int, ...]:
    from pyscf import symm
    from pyscf.tools.fcidump import ORBSYM_MAP

    irreps = symm.label_orb_symm(mole, mole.irrep_id, mole.symm_orb, coefficients)
    return tuple(int(ORBSYM_MAP[mole.groupname][irrep]) for irrep in irreps)
