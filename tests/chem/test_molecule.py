"""Molecules: what the constructor refuses, what the integrals obey."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from nnqs_lightning.chem import HydrogenChain, Molecule, scf
from nnqs_lightning.chem.molecule import fix_phases
from nnqs_lightning.chem.reference import determinant_energy
from nnqs_lightning.errors import UserError

NITROGEN = [("N", 0.0, 0.0, 0.0), ("N", 0.0, 0.0, 1.1)]
WATER = [("O", 0.0, 0.0, 0.1), ("H", 0.0, 0.76, -0.5), ("H", 0.0, -0.76, -0.5)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"atoms": [("N", 0.0, 0.0, 0.0)]}, r"model\.system\.spin is 0 \(2S\) for 7 electrons: expected an odd"),
        ({"atoms": NITROGEN, "spin": 1}, r"model\.system\.spin is 1 .* expected an even"),
        ({"atoms": NITROGEN, "spin": -2}, r"model\.system\.spin"),
        ({"atoms": [("H", 0.0, 0.0, 0.0)], "spin": 3}, r"model\.system\.spin"),
        ({"atoms": [("H", 0.0, 0.0, 0.0)], "charge": 1}, r"model\.system\.charge"),
        ({"atoms": NITROGEN, "unit": "nm"}, r"model\.system\.unit"),
        ({"atoms": NITROGEN, "wfn_sym": 1}, r"model\.system\.symmetry"),
        ({"atoms": NITROGEN, "wfn_sym": 9, "symmetry": True}, r"model\.system\.wfn_sym"),
        ({"atoms": NITROGEN, "frozen_core": -1}, r"model\.system\.frozen_core"),
        ({"atoms": NITROGEN, "max_fci_determinants": -1}, r"model\.system\.max_fci_determinants"),
        ({"atoms": "missing.xyz"}, r"model\.system\.atoms"),
    ],
)
def test_impossible_molecules_are_refused_at_construction(options: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Molecule(**options)


def test_what_only_pyscf_knows_is_refused_naming_the_key() -> None:
    with pytest.raises(UserError, match=r"no basis 'sto-99z'.*model\.system\.basis"):
        Molecule(NITROGEN, basis="sto-99z").integrals()
    with pytest.raises(UserError, match=r"point group 'Td'.*model\.system\.symmetry"):
        Molecule(WATER, symmetry="Td").integrals()


def test_constructing_imports_no_chemistry_package() -> None:
    code = (
        "import sys; from nnqs_lightning.chem import Molecule, HubbardChain, Fcidump, HydrogenChain;"
        "Molecule([('He', 0.0, 0.0, 0.0)]); HubbardChain(4); HydrogenChain(4); sys.exit('pyscf' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_units_are_those_of_the_input() -> None:
    from pyscf.data.nist import BOHR

    in_bohr = [(symbol, x / BOHR, y / BOHR, z / BOHR) for symbol, x, y, z in WATER]
    first, second = Molecule(WATER).integrals(), Molecule(in_bohr, unit="bohr").integrals()
    np.testing.assert_allclose(first.h1e, second.h1e, atol=1e-7)
    assert first.e_core == pytest.approx(second.e_core, abs=1e-9)


def test_ions_have_their_electrons() -> None:
    cation = Molecule(NITROGEN, charge=1, spin=1).integrals()
    assert (cation.n_alpha, cation.n_beta, cation.spin) == (7, 6, 1)


@pytest.mark.parametrize(
    ("atoms", "symmetry", "group"),
    [
        (NITROGEN, True, "D2h"),
        (NITROGEN, "C2v", "C2v"),
        (WATER, True, "C2v"),
        ([*NITROGEN, ("H", 0.0, 0.0, 2.2)], True, "C2v"),
    ],
)
def test_irreps_forbid_no_integral_that_is_there(atoms: list, symmetry: bool | str, group: str) -> None:
    spin = len(atoms) % 2 if atoms is not WATER else 0
    integrals = Molecule(atoms, symmetry=symmetry, spin=spin).integrals()
    assert integrals.point_group == group
    assert integrals.orbsym is not None
    irrep = np.array(integrals.orbsym) - 1
    assert len(set(irrep)) > 1
    pair = irrep[:, None] ^ irrep[None, :]
    assert np.abs(integrals.h1e[pair != 0]).max() < 1e-10
    assert np.abs(integrals.eri[pair[:, :, None, None] != pair[None, None]]).max() < 1e-10


def test_the_state_of_a_chosen_irrep_is_found() -> None:
    """The ground state of O2 is ³Σg⁻, which is B1g (number 4) in D2h; FCI over all irreps finds the same."""
    oxygen = [("O", 0.0, 0.0, 0.0), ("O", 0.0, 0.0, 1.2)]
    free = Molecule(oxygen, spin=2, symmetry=True).reference_energies().fci
    chosen = Molecule(oxygen, spin=2, symmetry=True, wfn_sym=4)
    other = Molecule(oxygen, spin=2, symmetry=True, wfn_sym=1).reference_energies().fci
    assert chosen.integrals().wfn_sym == Molecule(oxygen, spin=2, symmetry=True).integrals().wfn_sym == 4
    assert chosen.reference_energies().fci == pytest.approx(free, abs=1e-8)
    assert other is not None
    assert free is not None
    assert other > free + 0.1


def test_an_irrep_that_no_determinant_has_is_refused() -> None:
    with pytest.raises(UserError, match=r"model\.system\.wfn_sym is 5: the determinants here have \[1, 2, 3, 4\]"):
        Molecule(WATER, symmetry=True, wfn_sym=5).integrals()


def test_orbital_signs_do_not_depend_on_the_solver() -> None:
    rng = np.random.default_rng(0)
    orbitals = rng.normal(size=(5, 4))
    flipped = orbitals * np.array([1, -1, -1, 1])
    np.testing.assert_array_equal(fix_phases(orbitals), fix_phases(flipped))
    antisymmetric = np.array([[0.3], [-0.7], [0.7 + 1e-9]])
    np.testing.assert_array_equal(fix_phases(antisymmetric), fix_phases(-antisymmetric))


def test_a_field_that_diis_cannot_converge_is_finished_in_second_order() -> None:
    mole = scf.build_mole(NITROGEN, "angstrom", "sto-3g", 0, 0, False)
    reference = mole.RHF().run(conv_tol=1e-11).e_tot
    stalled = mole.RHF()
    stalled.max_cycle = 1
    assert scf.converge(stalled)
    assert stalled.e_tot == pytest.approx(reference, abs=1e-8)


@pytest.mark.parametrize("step", ["converge", "follow_instabilities"])
def test_a_field_that_does_not_converge_is_never_used(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    monkeypatch.setattr(scf, step, lambda *_: False)
    with pytest.raises(UserError, match=r"Hartree-Fock does not converge .*model\.system\.atoms"):
        Molecule([("N", 0.0, 0.0, 0.0), ("N", 0.0, 0.0, 1.1234)], stability=True).integrals()


def test_following_instabilities_lowers_a_saddle_point() -> None:
    """The first RHF solution of N2 at 2.1 Å is a saddle point, 0.23 hartree above a stable one."""
    stretched = [("N", 0.0, 0.0, 0.0), ("N", 0.0, 0.0, 2.1)]
    energies = [determinant_energy(Molecule(stretched, stability=stability).integrals()) for stability in (False, True)]
    assert energies[0] == pytest.approx(-106.808411, abs=1e-5)
    assert energies[1] < energies[0] - 0.1


def test_a_hydrogen_chain_is_a_molecule() -> None:
    chain = HydrogenChain(4, spacing=2.0)
    atoms = [("H", 0.0, 0.0, 2.0 * i) for i in range(4)]
    assert chain.integrals().digest() == Molecule(atoms, unit="bohr", basis="sto-6g").integrals().digest()
    assert HydrogenChain(3).integrals().spin == 1
    for wrong in ({"n_atoms": 0}, {"n_atoms": 4, "spacing": 0.0}):
        with pytest.raises(UserError, match=r"model\.system\.n_atoms"):
            HydrogenChain(**wrong)


def test_an_xyz_file_names_the_molecule(tmp_path: Path) -> None:
    path = tmp_path / "he.xyz"
    path.write_text("1\n\nHe 0 0 0\n")
    assert Molecule(str(path)).name == "He_sto-3g"
