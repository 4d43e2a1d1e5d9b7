"""Wave functions of CISD, MP2 and CCSD against PySCF's full vectors and brute-force second quantisation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from nnqs_lightning.chem import MolecularIntegrals, Molecule
from nnqs_lightning.chem.cluster import CIVector, cisd_vector, cluster_vector

WATER = Molecule([("O", 0.0, 0.0, 0.1), ("H", 0.0, 0.76, -0.5), ("H", 0.0, -0.76, -0.5)])
CARBENE = Molecule([("C", 0.0, 0.0, 0.0), ("H", 0.0, 0.9, 0.5), ("H", 0.0, -0.9, 0.5)], spin=2)
LITHIUM = Molecule([("Li", 0.0, 0.0, 0.0)], basis="6-31g", spin=1)
HYDROGEN = Molecule([("H", 0.0, 0.0, 0.0), ("H", 0.0, 0.0, 1.2)], basis="6-31g")
TRIPLET = Molecule([("H", 0.0, 0.0, 0.0), ("H", 0.0, 0.0, 1.2)], basis="6-31g", spin=2)
MOLECULES = pytest.mark.parametrize(
    "molecule", [WATER, CARBENE, LITHIUM, HYDROGEN, TRIPLET], ids=["water", "carbene", "lithium", "h2", "triplet"]
)


def full_vector(vector: CIVector, integrals: MolecularIntegrals) -> np.ndarray:
    """The vector in PySCF's array [α string, β string]."""
    from pyscf.fci import cistring

    n_orb, n_elec = integrals.n_orb, (integrals.n_alpha, integrals.n_beta)
    full = np.zeros([cistring.num_strings(n_orb, n) for n in n_elec])
    bits = (vector.occupations.astype(np.int64) << np.arange(n_orb)[None, :, None]).sum(axis=1)
    strings = np.ascontiguousarray(bits.T)
    rows, columns = (cistring.strs2addr(n_orb, n, strings[spin]) for spin, n in enumerate(n_elec))
    full[rows, columns] = vector.coefficients
    return full


def hamiltonian_on(full: np.ndarray, integrals: MolecularIntegrals) -> np.ndarray:
    from pyscf.fci import direct_spin1

    n_orb, n_elec = integrals.n_orb, (integrals.n_alpha, integrals.n_beta)
    absorbed = direct_spin1.absorb_h1e(integrals.h1e, integrals.eri, n_orb, n_elec, 0.5)
    return direct_spin1.contract_2e(absorbed, full, n_orb, n_elec) + integrals.e_core * full


@MOLECULES
def test_the_energy_of_the_cisd_vector_is_that_of_cisd(molecule: Molecule) -> None:
    integrals = molecule.integrals()
    vector = cisd_vector(integrals)
    full = full_vector(vector, integrals)
    assert np.linalg.norm(full) == pytest.approx(1.0, abs=1e-12)
    assert np.count_nonzero(full) == len(vector.coefficients), "a determinant is listed twice"
    energy = np.vdot(full, hamiltonian_on(full, integrals))
    assert energy == pytest.approx(molecule.reference_energies().cisd, abs=1e-8)


@pytest.mark.parametrize("molecule", [WATER, CARBENE], ids=["water", "carbene"])
def test_the_cisd_vector_is_pyscfs_full_vector(molecule: Molecule) -> None:
    from pyscf import ci

    from nnqs_lightning.chem.cluster import _solve

    integrals = molecule.integrals()
    n_elec = (integrals.n_alpha, integrals.n_beta)
    solver = _solve(ci.CISD, integrals, "CISD")
    if molecule.spin:
        expected = ci.ucisd.to_fcivec(solver.ci, integrals.n_orb, n_elec)
    else:
        expected = ci.cisd.to_fcivec(solver.ci, integrals.n_orb, n_elec)
    found = full_vector(cisd_vector(integrals), integrals)
    assert abs(np.vdot(found, expected)) == pytest.approx(1.0, abs=1e-10)


@MOLECULES
def test_the_cluster_vector_projects_onto_the_coupled_cluster_energy(molecule: Molecule) -> None:
    """⟨Φ|H exp(T)|Φ⟩ = E_CCSD ⟨Φ|exp(T)|Φ⟩: only singles and doubles couple to the reference."""
    integrals = molecule.integrals()
    full = full_vector(cluster_vector(integrals, threshold=0.0), integrals)
    assert hamiltonian_on(full, integrals)[0, 0] / full[0, 0] == pytest.approx(
        molecule.reference_energies().ccsd, abs=1e-6
    )


@pytest.mark.parametrize("molecule", [HYDROGEN, TRIPLET], ids=["h2", "triplet"])
def test_two_electrons_are_exact_in_second_order(molecule: Molecule) -> None:
    integrals = molecule.integrals()
    full = full_vector(cluster_vector(integrals, order=2, threshold=0.0), integrals)
    energy = np.vdot(full, hamiltonian_on(full, integrals))
    assert energy == pytest.approx(molecule.reference_energies().fci, abs=1e-7)


def test_mp2_energy_follows_from_its_vector() -> None:
    integrals = WATER.integrals()
    full = full_vector(cluster_vector(integrals, "mp2", order=1, threshold=0.0), integrals)
    energy = hamiltonian_on(full, integrals)[0, 0] / full[0, 0]
    assert energy == pytest.approx(WATER.reference_energies().mp2, abs=1e-7)


@pytest.mark.parametrize("molecule", [WATER, CARBENE], ids=["water", "carbene"])
def test_higher_orders_come_closer_to_the_exact_state(molecule: Molecule) -> None:
    """Disconnected triples and quadruples account for most of what CISD lacks."""
    integrals = molecule.integrals()
    exact = molecule.reference_energies().fci
    assert exact is not None
    errors = []
    for order in (1, 2, 3, 4):
        full = full_vector(cluster_vector(integrals, order=order, threshold=0.0), integrals)
        errors.append(np.vdot(full, hamiltonian_on(full, integrals)) - exact)
    assert errors[0] > 2 * errors[1] > 0
    assert 0 < errors[3] < 2e-4


def creation(n_modes: int, mode: int) -> np.ndarray:
    """Jordan–Wigner matrix of a†_mode; mode 0 is the leftmost."""
    raising, string = np.array([[0.0, 0.0], [1.0, 0.0]]), np.diag([1.0, -1.0])
    matrix = np.eye(1)
    for other in range(n_modes):
        matrix = np.kron(matrix, string if other < mode else raising if other == mode else np.eye(2))
    return matrix


@pytest.mark.parametrize("n_electrons", [(2, 2), (2, 1)])
def test_powers_of_the_cluster_operator_are_those_of_its_matrix(
    make_integrals: Callable[..., MolecularIntegrals], n_electrons: tuple[int, int]
) -> None:
    from nnqs_lightning.chem import cluster

    n_orb = 4
    integrals = make_integrals(n_orb, n_alpha=n_electrons[0], n_beta=n_electrons[1])
    rng = np.random.default_rng(1)
    n_occ, n_virt = n_electrons, (n_orb - n_electrons[0], n_orb - n_electrons[1])
    singles = tuple(rng.normal(size=(o, v)) for o, v in zip(n_occ, n_virt, strict=True))
    doubles = [rng.normal(size=(o, o, v, v)) for o, v in zip(n_occ, n_virt, strict=True)]
    doubles = [d - d.transpose(1, 0, 2, 3) for d in doubles]
    doubles = [d - d.transpose(0, 1, 3, 2) for d in doubles]
    mixed = rng.normal(size=(n_occ[0], n_occ[1], n_virt[0], n_virt[1]))
    operators = cluster._excitations(integrals, singles, (doubles[0], mixed, doubles[1]))

    create = [creation(2 * n_orb, mode) for mode in range(2 * n_orb)]
    matrix = np.zeros((256, 256))
    for spin in (0, 1):
        offset = spin * n_orb
        for (i, a), t in np.ndenumerate(singles[spin]):
            matrix += t * create[offset + n_occ[spin] + a] @ create[offset + i].T
        for (i, j, a, b), t in np.ndenumerate(doubles[spin]):
            first, second = (create[offset + n_occ[spin] + virtual] for virtual in (a, b))
            matrix += 0.25 * t * first @ second @ create[offset + j].T @ create[offset + i].T
    for (i, j, a, b), t in np.ndenumerate(mixed):
        first, second = create[n_occ[0] + a], create[n_orb + n_occ[1] + b]
        matrix += t * first @ second @ create[n_orb + j].T @ create[i].T

    def dense(occupations: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
        state = np.zeros(256)
        weights = 2 ** np.arange(2 * n_orb - 1, -1, -1)
        state[occupations.astype(int) @ weights] = coefficients
        return state

    term = (cluster._reference(integrals), np.ones(1))
    expected = dense(*term)
    for _ in range(3):
        term = cluster._apply(operators, *term, threshold=0.0)
        expected = matrix @ expected
        np.testing.assert_allclose(dense(*term), expected, atol=1e-10)


def test_truncation_keeps_the_largest_weights() -> None:
    vector = cisd_vector(WATER.integrals())
    assert (np.diff(np.abs(vector.coefficients)) <= 0).all()
    short = vector.truncated(10)
    assert len(short.coefficients) == 10
    assert np.linalg.norm(short.coefficients) == pytest.approx(1.0)
    screened = cluster_vector(WATER.integrals(), threshold=1e-3)
    assert len(screened.coefficients) < len(vector.coefficients)
