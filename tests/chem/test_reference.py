"""Reference energies against published values, dense diagonalisation and each other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnqs_lightning.chem import ActiveSpace, Fcidump, HubbardChain, MolecularIntegrals, Molecule, read_fcidump
from nnqs_lightning.chem.reference import compute_reference_energies, determinant_energy, fci_energy
from nnqs_lightning.errors import UserError


def molecule(entry: dict[str, Any]) -> Molecule:
    atoms = [tuple(atom) for atom in entry["atoms"]]
    return Molecule(atoms, entry["unit"], entry["basis"], charge=entry["charge"], spin=entry["multiplicity"] - 1)


@pytest.mark.parametrize("name", ["h2_6-31g", "lih", "beh2", "ch2", "h2o", "nh3_eq", "c2", "f2", "o2", "n2_1.8"])
def test_molecules_have_their_published_energies(molecules: dict[str, dict[str, Any]], name: str) -> None:
    found = molecule(molecules[name]).reference_energies()
    for method in ("hf", "ccsd", "ccsd_t", "fci"):
        assert getattr(found, method) == pytest.approx(molecules[name][f"e_{method}"], abs=1e-6), method


def test_every_method_agrees_with_pyscf_on_the_molecule_itself(molecules: dict[str, dict[str, Any]]) -> None:
    from pyscf import cc, ci, gto, mp, scf

    mole = gto.M(atom=molecules["ch2"]["atoms"], basis="sto-3g", spin=2, verbose=0)
    mean_field = scf.ROHF(mole).run(conv_tol=1e-11)
    found = molecule(molecules["ch2"]).reference_energies()
    assert found.hf == pytest.approx(mean_field.e_tot, abs=1e-8)
    assert found.mp2 == pytest.approx(mp.MP2(mean_field).run().e_tot, abs=1e-7)
    assert found.cisd == pytest.approx(ci.CISD(mean_field).run().e_tot, abs=1e-7)
    assert found.ccsd == pytest.approx(cc.CCSD(mean_field).run().e_tot, abs=1e-6)


@pytest.mark.slow
def test_coupled_cluster_that_does_not_converge_is_left_out(
    molecules: dict[str, dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    found = molecule(molecules["n2_2.25"]).reference_energies()
    assert (found.ccsd, found.ccsd_t) == (None, None)
    assert "CCSD and CCSD(T) did not converge" in caplog.text
    assert found.fci == pytest.approx(molecules["n2_2.25"]["e_fci"], abs=1e-6)


@pytest.mark.parametrize(
    ("name", "energy"),
    [
        ("h2_631g", -1.01431027),
        ("h2o_sto3g", -75.01240139),
        ("n2_sto3g_d2h", -107.65412245),
        ("n2_sto3g_uhf", -107.65412245),
        ("h8_sto6g", -4.34507940),
        ("hubbard_l8", -6.22563414),
        ("n2_cas_10e8o", -109.03440704),
        ("c4h4_cas", -153.49738109),
        ("o2_triplet_cas", -149.70028027),
    ],
)
def test_fcidump_files_have_their_published_energies(fcidump_dir: Path, name: str, energy: float) -> None:
    integrals = read_fcidump(fcidump_dir / f"{name}.FCIDUMP")
    assert fci_energy(integrals, 100_000) == pytest.approx(energy, abs=2e-8)


def test_coupled_cluster_of_a_large_file(fcidump_dir: Path) -> None:
    found = Fcidump(fcidump_dir / "n2_ccpvdz.FCIDUMP").reference_energies()
    assert found.ccsd_t == pytest.approx(-109.280305, abs=1e-6)
    assert found.fci is None


def test_files_without_a_published_energy_are_read(fcidump_dir: Path) -> None:
    ring = Fcidump(fcidump_dir / "hubbard_1x6.FCIDUMP")
    assert ring.integrals().digest() == HubbardChain(6, u=4.0, periodic=True).integrals().digest()
    iron = read_fcidump(fcidump_dir / "fe2s2_30e20o.FCIDUMP")
    assert determinant_energy(iron) == pytest.approx(-107.108, abs=1e-3)
    atoms = read_fcidump(fcidump_dir / "h4_ghf_complex.FCIDUMP")
    assert atoms.h1e[0, 3] == -0.01625179798556789


def test_hubbard_chain_of_two_sites_has_its_textbook_energy() -> None:
    for u in (0.0, 1.0, 8.0):
        found = HubbardChain(2, u=u).reference_energies().fci
        assert found == pytest.approx(0.5 * (u - np.sqrt(u * u + 16.0)), abs=1e-10)


def test_free_hubbard_chain_fills_its_bands() -> None:
    levels = np.sort(-2.0 * np.cos(2 * np.pi * np.arange(6) / 6))
    found = HubbardChain(6, u=0.0, periodic=True, n_alpha=3, n_beta=1).reference_energies()
    assert found.fci == pytest.approx(levels[:3].sum() + levels[0], abs=1e-9)
    for wrong in (
        {"n_sites": 0},
        {"n_sites": 2, "periodic": True},
        {"n_sites": 4, "n_alpha": 5},
        {"n_sites": 4, "n_beta": 3},
    ):
        with pytest.raises(UserError, match=r"model\.system\.n_"):
            HubbardChain(**wrong)


def eigenvalues(integrals: MolecularIntegrals) -> tuple[np.ndarray, np.ndarray]:
    """All eigenvalues, and those with S = spin / 2, from the dense matrices of H and S²."""
    from pyscf.fci import direct_spin1, spin_op

    n_orb, n_elec = integrals.n_orb, (integrals.n_alpha, integrals.n_beta)
    n_strings = [direct_spin1.cistring.num_strings(n_orb, n) for n in n_elec]
    size = n_strings[0] * n_strings[1]
    basis = np.eye(size).reshape(size, *n_strings)
    absorbed = direct_spin1.absorb_h1e(integrals.h1e, integrals.eri, n_orb, n_elec, 0.5)
    dense = np.array([direct_spin1.contract_2e(absorbed, c, n_orb, n_elec).ravel() for c in basis])
    spin = np.array([spin_op.contract_ss(c, n_orb, n_elec).ravel() for c in basis])
    energies, vectors = np.linalg.eigh(dense + 1e-7 * spin)
    s = integrals.spin / 2
    right = np.abs(np.einsum("ij,ik,kj->j", vectors, spin, vectors) - s * (s + 1)) < 1e-6
    return np.linalg.eigvalsh(dense) + integrals.e_core, energies[right] - 1e-7 * s * (s + 1) + integrals.e_core


@pytest.mark.parametrize(("n_alpha", "n_beta"), [(1, 1), (2, 2), (3, 3), (2, 1), (3, 1), (4, 4), (3, 0)])
@pytest.mark.parametrize("seed", [0, 1])
def test_fci_is_the_lowest_eigenvalue_of_the_right_spin(
    make_integrals: Callable[..., MolecularIntegrals], n_alpha: int, n_beta: int, seed: int
) -> None:
    integrals = make_integrals(4, seed, n_alpha=n_alpha, n_beta=n_beta)
    assert fci_energy(integrals, 1000) == pytest.approx(eigenvalues(integrals)[1][0], abs=1e-8)


def test_fci_of_carbon_is_the_singlet_though_its_solver_prefers_the_triplet(
    molecules: dict[str, dict[str, Any]],
) -> None:
    from pyscf import fci

    integrals = molecule(molecules["c2"]).integrals()
    naive = fci.direct_spin1.kernel(integrals.h1e, integrals.eri, 10, (6, 6))[0] + integrals.e_core
    assert naive == pytest.approx(-74.645904, abs=1e-5), "the trap is gone, and this test with it"
    assert fci_energy(integrals, 100_000) == pytest.approx(-74.690782, abs=1e-6)


def carbon(distance: float, basis: str, active_space: ActiveSpace) -> MolecularIntegrals:
    atoms = [("C", 0.0, 0.0, 0.0), ("C", 0.0, 0.0, distance)]
    return Molecule(atoms, basis=basis, active_space=active_space).integrals()


def lowest_of_many_singlets(integrals: MolecularIntegrals) -> float:
    from pyscf import fci

    solver = fci.addons.fix_spin_(fci.direct_spin1.FCISolver(), ss=0)
    n_elec = (integrals.n_alpha, integrals.n_beta)
    energies = solver.kernel(integrals.h1e, integrals.eri, integrals.n_orb, n_elec, nroots=8, max_space=60)[0]
    return energies.min() + integrals.e_core


def test_fci_is_not_caught_in_an_excited_state_of_another_symmetry() -> None:
    """Started from the lowest determinants, PySCF ends 5 millihartree higher here."""
    integrals = carbon(1.8, "6-31g", ActiveSpace(6, 7))
    assert fci_energy(integrals, 2000) == pytest.approx(lowest_of_many_singlets(integrals), abs=1e-8)


def test_fci_converges_between_near_degenerate_states() -> None:
    """Two singlets lie half a millihartree apart."""
    integrals = carbon(1.8, "sto-3g", ActiveSpace(8, 8))
    assert fci_energy(integrals, 5000) == pytest.approx(lowest_of_many_singlets(integrals), abs=1e-7)


def test_fci_above_the_limit_is_left_out(make_integrals: Callable[..., MolecularIntegrals]) -> None:
    integrals = make_integrals(4)
    assert fci_energy(integrals, 35) is None
    assert fci_energy(integrals, 36) is not None


@pytest.mark.parametrize("n_alpha_beta", [(1, 0), (2, 0), (3, 0), (4, 0), (4, 4), (4, 3), (1, 1), (2, 1), (3, 2)])
def test_every_method_has_an_answer_in_the_smallest_sectors(
    make_integrals: Callable[..., MolecularIntegrals], n_alpha_beta: tuple[int, int]
) -> None:
    n_alpha, n_beta = n_alpha_beta
    integrals = make_integrals(4, seed=3, n_alpha=n_alpha, n_beta=n_beta)
    found = compute_reference_energies(integrals, 1000)
    every_spin, right_spin = eigenvalues(integrals)
    assert found.fci == pytest.approx(right_spin[0], abs=1e-8)
    for variational in (found.hf, found.cisd):
        assert variational is None or variational > every_spin[0] - 1e-7
    if n_alpha + n_beta == 2 and found.ccsd is not None:
        assert found.cisd == pytest.approx(found.fci, abs=1e-7)
        assert found.ccsd == pytest.approx(found.fci, abs=1e-6)
    if n_alpha + n_beta == 1 or n_beta == 4:
        assert found.hf == pytest.approx(found.fci, abs=1e-8)


def test_the_energy_of_a_determinant_is_that_of_its_density(make_integrals: Callable[..., MolecularIntegrals]) -> None:
    from nnqs_lightning.chem.scf import aufbau_density, mean_field_of_integrals

    for n_alpha, n_beta in ((2, 2), (3, 1)):
        integrals = make_integrals(5, n_alpha=n_alpha, n_beta=n_beta)
        density = aufbau_density(5, n_alpha, n_beta)
        mean_field = mean_field_of_integrals(integrals)
        expected = mean_field.energy_tot(density if n_alpha != n_beta else density.sum(axis=0))
        assert determinant_energy(integrals) == pytest.approx(expected, abs=1e-10)
