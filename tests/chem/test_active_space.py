"""Frozen core and active space against PySCF's CASCI."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from nnqs_lightning.chem import ActiveSpace, MolecularIntegrals, Molecule
from nnqs_lightning.chem.active_space import partition, reduce_integrals
from nnqs_lightning.errors import UserError

WATER = [("O", 0.0, 0.0, 0.1), ("H", 0.0, 0.76, -0.5), ("H", 0.0, -0.76, -0.5)]
OXYGEN = [("O", 0.0, 0.0, 0.0), ("O", 0.0, 0.0, 1.2)]

KEY = r"model\.system\.active_space"


def casci(molecule: Molecule, n_orbitals: int, n_electrons: int) -> tuple[float, np.ndarray, float]:
    """Core energy, effective one-electron integrals and FCI energy of PySCF's CASCI on our orbitals."""
    from pyscf import fci, mcscf

    from nnqs_lightning.chem import scf

    mole = scf.build_mole(molecule.atoms, molecule.unit, molecule.basis, 0, molecule.spin, False)
    mean_field = mole.RHF() if molecule.spin == 0 else mole.ROHF()
    solver = mcscf.CASCI(mean_field, n_orbitals, n_electrons)
    solver.mo_coeff = Molecule(molecule.atoms, basis=molecule.basis, spin=molecule.spin).integrals().mo_coeff
    h1e, e_core = solver.get_h1eff()
    fci.addons.fix_spin_(solver.fcisolver, ss=molecule.spin / 2 * (molecule.spin / 2 + 1))
    solver.verbose = 0
    return e_core, h1e, solver.kernel()[0]


@pytest.mark.parametrize(
    ("molecule", "n_orbitals", "n_electrons"),
    [
        (Molecule(WATER, frozen_core=1), 6, 8),
        (Molecule(WATER, frozen_core="auto"), 6, 8),
        (Molecule(WATER, active_space=ActiveSpace(4, 4)), 4, 4),
        (Molecule(WATER, basis="6-31g", active_space=ActiveSpace(6, 5)), 5, 6),
        (Molecule(OXYGEN, spin=2, active_space=ActiveSpace(8, 6)), 6, 8),
        (Molecule(OXYGEN, spin=2, frozen_core="auto"), 8, 12),
    ],
    ids=["core", "auto", "cas44", "cas65", "triplet", "triplet-core"],
)
def test_reduced_integrals_are_those_of_casci(molecule: Molecule, n_orbitals: int, n_electrons: int) -> None:
    integrals = molecule.integrals()
    e_core, h1e, energy = casci(molecule, n_orbitals, n_electrons)
    assert (integrals.n_orb, integrals.n_alpha + integrals.n_beta) == (n_orbitals, n_electrons)
    assert integrals.e_core == pytest.approx(e_core, abs=1e-9)
    np.testing.assert_allclose(integrals.h1e, h1e, atol=1e-9)
    assert molecule.reference_energies().fci == pytest.approx(energy, abs=1e-7)


def test_an_orbital_list_picks_the_same_space_as_the_numbers() -> None:
    by_number = Molecule(WATER, active_space=ActiveSpace(4, 4)).integrals()
    for chosen in (ActiveSpace(orbitals=[3, 4, 5, 6]), ActiveSpace(4, orbitals=[6, 5, 4, 3])):
        by_list = Molecule(WATER, active_space=chosen).integrals()
        assert by_list.digest() == by_number.digest()
    gap = Molecule(WATER, active_space=ActiveSpace(orbitals=[0, 4, 6])).integrals()
    assert (gap.n_alpha, gap.n_beta, gap.n_orb) == (2, 2, 3)


def test_freezing_in_two_steps_is_freezing_at_once(make_integrals: Callable[..., MolecularIntegrals]) -> None:
    whole = make_integrals(6, n_alpha=4, n_beta=3)
    twice = reduce_integrals(reduce_integrals(whole, [0], range(1, 6)), [0], range(1, 5))
    once = reduce_integrals(whole, [0, 1], range(2, 6))
    assert twice.e_core == pytest.approx(once.e_core, abs=1e-12)
    np.testing.assert_allclose(twice.h1e, once.h1e, atol=1e-12)
    np.testing.assert_array_equal(twice.eri, once.eri)
    assert (once.n_alpha, once.n_beta) == (2, 1)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"n_electrons": 4}, "give n_electrons and n_orbitals"),
        ({}, "give n_electrons and n_orbitals"),
        ({"orbitals": [1, 1]}, "distinct"),
        ({"orbitals": [-1, 1]}, "distinct"),
        ({"orbitals": []}, "distinct"),
        ({"orbitals": [1, 2], "n_orbitals": 3}, "lists 2"),
        ({"n_electrons": 5, "n_orbitals": 4}, "leaves an even number"),
        ({"n_electrons": 12, "n_orbitals": 7}, "from 1 to 10"),
        ({"n_electrons": 0, "n_orbitals": 7}, "from 1 to 10"),
        ({"n_electrons": 8, "n_orbitals": 3}, "do not fit into 3 orbitals"),
    ],
)
def test_an_impossible_active_space_is_refused_when_it_is_asked_for(space: dict, message: str) -> None:
    with pytest.raises(UserError, match=rf"{KEY}.*{message}"):
        Molecule(WATER, active_space=ActiveSpace(**space))


def test_an_active_space_beyond_the_basis_is_refused() -> None:
    with pytest.raises(UserError, match=rf"{KEY}: orbital 8 .* there are 7 orbitals"):
        partition(7, 5, 5, 0, ActiveSpace(8, 8))
    with pytest.raises(UserError, match=rf"{KEY}\.orbitals leaves out a singly occupied"):
        partition(7, 5, 3, 0, ActiveSpace(orbitals=[3, 5]))
    with pytest.raises(UserError, match=rf"{KEY}: 0 α and 0 β electrons"):
        partition(7, 5, 5, 0, ActiveSpace(orbitals=[5, 6]))
    for frozen in (5, 6, -1):
        with pytest.raises(UserError, match=r"model\.system\.frozen_core"):
            partition(7, 5, 5, frozen, None)
    with pytest.raises(UserError, match="exclude each other"):
        partition(7, 5, 5, 1, ActiveSpace(4, 4))
