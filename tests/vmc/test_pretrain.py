import numpy as np
import pytest
import torch

from nnqs_lightning.chem import Molecule
from nnqs_lightning.errors import UserError
from nnqs_lightning.fock import Sector
from nnqs_lightning.hamiltonian import MolecularHamiltonian, hamiltonian_on
from nnqs_lightning.vmc.pretrain import (
    CISD,
    CoupledCluster,
    FirstOrder,
    SavedState,
    SelectedCI,
    irreps,
    lowest_state,
    reference_determinant,
)

WATER = [("O", 0.0, 0.0, 0.0), ("H", 0.2774, 0.8929, 0.2544), ("H", 0.6068, -0.2383, -0.7169)]


@pytest.fixture(scope="module")
def water():
    return MolecularHamiltonian(Molecule(atoms=WATER, name="h2o").integrals())


@pytest.fixture(scope="module")
def exact(water):
    return torch.linalg.eigvalsh(water.dense(water.sector.determinants()))[0].item()


def rayleigh_quotient(hamiltonian, state):
    vector = state.coefficients
    return (vector.conj() @ (hamiltonian.dense(state.determinants).to(vector.dtype) @ vector)).real.item()


def test_cisd_is_pyscfs(water):
    from pyscf import ci, gto, scf

    mole = gto.M(atom=WATER, basis="sto-3g", verbose=0)
    expected = ci.CISD(scf.RHF(mole).run(conv_tol=1e-12)).run(conv_tol=1e-12).e_tot
    state = CISD(first_order=False).vector(water)
    assert state.energy == pytest.approx(expected, abs=1e-8)
    assert rayleigh_quotient(water, state) == pytest.approx(state.energy, abs=1e-9)
    assert len(state.determinants) == water.n_connected


@pytest.mark.parametrize(
    "target", [CISD(first_order=False), CISD(first_order=True), SelectedCI(40), FirstOrder(), CoupledCluster()]
)
def test_states_are_normalised_and_know_their_energy(water, exact, target):
    state = target.vector(water)
    assert state.coefficients.abs().square().sum().item() == pytest.approx(1)
    assert rayleigh_quotient(water, state) == pytest.approx(state.energy, abs=1e-9)
    assert exact < state.energy < water.diagonal(water.sector.aufbau()).item()
    assert len(torch.unique(state.determinants.flatten(1), dim=0)) == len(state.determinants)


def test_selected_ci_takes_better_determinants_than_cisd_and_ends_at_full_ci(water, exact):
    def selected(size):
        return SelectedCI(size).vector(water)

    cisd = CISD(first_order=False).vector(water)
    important = int((cisd.coefficients.abs() > 1e-6).sum())
    assert selected(important).energy < cisd.energy
    assert selected(441).energy == pytest.approx(exact, abs=1e-7)
    energies = [selected(size).energy for size in (1, 5, 20, 60)]
    assert energies == sorted(energies, reverse=True)


def test_first_order_amplitudes_outside_recover_most_of_what_cisd_lacks(water, exact):
    plain, corrected = CISD(first_order=False).vector(water), CISD(first_order=True).vector(water)
    assert corrected.energy - exact < 0.1 * (plain.energy - exact)


def test_the_correction_to_one_determinant_is_perturbation_theory(water):
    alone = SelectedCI(1, first_order=True).vector(water)
    expected = FirstOrder().vector(water)
    assert alone.energy == pytest.approx(expected.energy, abs=1e-7)


def test_large_and_small_sets_give_the_same_state(water, monkeypatch):
    whole = lowest_state(water, water.sector.determinants())
    monkeypatch.setattr("nnqs_lightning.vmc.pretrain.DENSE_SIZE", 10)
    iterated = lowest_state(water, water.sector.determinants())
    assert iterated.energy == pytest.approx(whole.energy, abs=1e-8)
    assert (iterated.coefficients.conj() @ whole.coefficients).real.item() == pytest.approx(1, abs=1e-6)


def test_first_order_amplitudes_are_those_of_perturbation_theory(water):
    state = FirstOrder().vector(water)
    determinants = water.sector.determinants()
    matrix = water.dense(determinants)
    start = int((determinants == water.sector.aufbau()).flatten(1).all(1).nonzero())
    lookup = {tuple(row.flatten().tolist()): i for i, row in enumerate(determinants)}
    reference = None
    for row, coefficient in zip(state.determinants, state.coefficients.real.tolist(), strict=True):
        if torch.equal(row, determinants[start]):
            reference = coefficient
    for row, coefficient in zip(state.determinants, state.coefficients.real.tolist(), strict=True):
        i = lookup[tuple(row.flatten().tolist())]
        if i != start:
            expected = matrix[i, start] / (matrix[start, start] - matrix[i, i])
            assert coefficient / reference == pytest.approx(expected.item(), abs=1e-10)


def test_a_saved_state_comes_back(water, tmp_path):
    state = SelectedCI(30).vector(water)
    sector = water.sector
    np.savez(
        tmp_path / "determinants.npz",
        determinants=state.determinants.numpy(),
        log_psi=torch.log(state.coefficients).numpy() - 3,
        n_orb=sector.n_orb,
        n_alpha=sector.n_alpha,
        n_beta=sector.n_beta,
    )
    read = SavedState(str(tmp_path / "determinants.npz")).vector(water)
    torch.testing.assert_close(read.coefficients, state.coefficients)
    assert read.energy == pytest.approx(state.energy, abs=1e-10)


def test_a_state_of_another_system_or_no_file_is_refused(water, tmp_path):
    path = tmp_path / "determinants.npz"
    np.savez(path, determinants=np.zeros((1, 2, 1), int), log_psi=np.zeros(1, complex), n_orb=3, n_alpha=1, n_beta=1)
    with pytest.raises(UserError, match="n_orb"):
        SavedState(str(path)).vector(water)
    with pytest.raises(UserError, match=r"missing\.npz"):
        SavedState(str(tmp_path / "missing.npz")).vector(water)


def test_a_cisd_that_would_not_fit_is_refused(water):
    with pytest.raises(UserError, match="max_determinants"):
        CISD(max_determinants=10).vector(water)


@pytest.mark.parametrize(
    "target", [CISD(first_order=False), SelectedCI(40), FirstOrder(), CoupledCluster(max_determinants=10_000)]
)
def test_even_combinations_hold_the_singlet_with_fewer_amplitudes(water, target):
    even = hamiltonian_on(water.integrals, Sector(7, 5, 5, 1))
    plain, folded = target.vector(water), target.vector(even)
    assert rayleigh_quotient(even, folded) == pytest.approx(folded.energy, abs=1e-9)
    if not isinstance(target, SelectedCI):
        # H_DD of a combination holds the coupling of its two members: a better denominator for first-order amplitudes.
        tolerance = 1e-4 if isinstance(target, FirstOrder) else 1e-8
        assert folded.energy == pytest.approx(plain.energy, abs=tolerance)
        assert len(folded.determinants) < 0.7 * len(plain.determinants)


def test_coupled_cluster_is_nearer_to_full_ci_than_cisd(water, exact):
    assert CoupledCluster().vector(water).energy - exact < 0.3 * (CISD(first_order=False).vector(water).energy - exact)


def test_odd_combinations_hold_the_triplet(water):
    odd = hamiltonian_on(water.integrals, Sector(7, 5, 5, -1))
    exact = torch.linalg.eigvalsh(odd.dense(odd.sector.determinants()))[0].item()
    assert SelectedCI(210).vector(odd).energy == pytest.approx(exact, abs=1e-7)
    with pytest.raises(UserError, match="spin_flip"):
        CoupledCluster().vector(odd)


@pytest.mark.parametrize(("spin", "wfn_sym"), [(0, None), (2, None), (0, 4), (2, 2)])
def test_targets_begin_and_stay_in_their_irrep(spin, wfn_sym):
    methylene = [("C", 0.0, 0.0, 0.0), ("H", 0.98, 0.5, 0.0), ("H", -0.98, 0.5, 0.0)]
    system = Molecule(atoms=methylene, spin=spin, symmetry=True, wfn_sym=wfn_sym)
    hamiltonian = MolecularHamiltonian(system.integrals())
    orbsym, target = hamiltonian.integrals.orbsym, hamiltonian.integrals.wfn_sym
    assert target == wfn_sym or irreps(hamiltonian.sector.aufbau(), orbsym) == target
    assert irreps(reference_determinant(hamiltonian), orbsym) == target
    for state in (CISD(first_order=False).vector(hamiltonian), SelectedCI(50).vector(hamiltonian)):
        assert (irreps(state.determinants, orbsym) == target).all()
