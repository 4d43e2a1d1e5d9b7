"""Final figures against full diagonalisation, brute-force sums and a known line."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nnqs_lightning.chem import HubbardChain, Molecule
from nnqs_lightning.fock import Sector
from nnqs_lightning.hamiltonian import MolecularHamiltonian
from nnqs_lightning.vmc.final_figures import (
    Limits,
    ground_state,
    outside,
    set_figures,
    spin_squared,
    standard_error,
    zero_extrapolation,
)
from nnqs_lightning.vmc.pretrain import CISD, lowest_state

WATER = [("O", 0.0, 0.0, 0.0), ("H", 0.2774, 0.8929, 0.2544), ("H", 0.6068, -0.2383, -0.7169)]
FCI = -75.01553018949


@pytest.fixture(scope="module")
def water() -> MolecularHamiltonian:
    return MolecularHamiltonian(Molecule(atoms=WATER, name="h2o").integrals())


@pytest.fixture(scope="module")
def cisd(water: MolecularHamiltonian):
    return CISD(first_order=False).vector(water)


def rows_of(figures) -> dict[str, object]:
    return {row.key: row for row in figures.rows}


def log_of(coefficients: torch.Tensor) -> torch.Tensor:
    return coefficients.log()


def test_on_the_whole_sector_every_energy_is_full_ci(water: MolecularHamiltonian):
    exact = lowest_state(water, water.sector.determinants())
    figures = set_figures(water, exact.determinants, log_of(exact.coefficients), Limits())
    rows = rows_of(figures)
    for key in ("rayleigh", "subspace", "second_order", "zero_variance", "zero_correction"):
        assert rows[key].energy == pytest.approx(FCI, abs=1e-7), key
    assert figures.overlap == pytest.approx(1, abs=1e-8)
    assert figures.s2_network == pytest.approx(0, abs=1e-8)


def test_each_row_improves_on_the_one_before_and_only_bounds_are_called_variational(water, cisd):
    noisy = cisd.coefficients + 1e-3 * torch.randn(len(cisd.coefficients), generator=torch.Generator().manual_seed(1))
    rows = rows_of(set_figures(water, cisd.determinants, log_of(noisy), Limits()))
    assert rows["rayleigh"].energy > rows["subspace"].energy > FCI
    assert rows["subspace"].energy == pytest.approx(cisd.energy, abs=1e-9)
    for key in ("second_order", "zero_variance", "zero_correction"):
        assert abs(rows[key].energy - FCI) < 0.4 * (rows["subspace"].energy - FCI), key
    assert {key for key, row in rows.items() if row.variational} == {"rayleigh", "subspace"}


def test_what_lies_outside_is_the_brute_force_sum(water, cisd):
    whole = water.sector.determinants()
    inside = {tuple(row) for row in cisd.determinants.flatten(1).tolist()}
    rest = whole[[tuple(row) not in inside for row in whole.flatten(1).tolist()]]
    together = torch.cat([cisd.determinants, rest])
    coupling = (water.dense(together)[len(inside) :, : len(inside)] @ cisd.coefficients.real).numpy()
    found = outside(water, cisd, screening=0.0)
    gap = cisd.energy - water.diagonal(rest).numpy()
    assert found.second_order == pytest.approx((coupling**2 / gap).sum(), rel=1e-9)
    assert found.variance == pytest.approx((coupling**2).sum(), rel=1e-9)
    screened = outside(water, cisd, screening=1e-3)
    assert found.second_order < screened.second_order < 0


def test_davidson_finds_what_dense_diagonalisation_finds(water, cisd, monkeypatch):
    monkeypatch.setattr("nnqs_lightning.vmc.final_figures.states.DENSE_SIZE", 10)
    guess = torch.zeros(len(cisd.determinants), dtype=torch.complex128)
    guess[0] = 1j  # a phase that H does not know
    state = ground_state(water, cisd.determinants, guess)
    assert state.energy == pytest.approx(cisd.energy, abs=1e-8)
    assert abs(float(torch.vdot(state.coefficients, cisd.coefficients).abs())) == pytest.approx(1, abs=1e-6)


def test_only_the_heaviest_determinants_of_a_large_set_are_diagonalised(water, cisd):
    figures = set_figures(
        water, cisd.determinants, log_of(cisd.coefficients), Limits(max_determinants=20, truncations=2)
    )
    assert [t.n_determinants for t in figures.truncations] == [10, 20]
    heaviest = cisd.determinants[cisd.coefficients.abs().argsort(descending=True)[:20]]
    assert rows_of(figures)["subspace"].energy == pytest.approx(lowest_state(water, heaviest).energy, abs=1e-9)


@pytest.mark.parametrize(("n_alpha", "n_beta"), [(2, 2), (3, 1), (3, 2)])
def test_spin_squared_is_pyscfs(n_alpha: int, n_beta: int):
    from pyscf.fci import spin_op

    sector = Sector(4, n_alpha, n_beta)
    determinants = sector.determinants()
    vector = np.random.default_rng(3).normal(size=len(determinants))
    # PySCF counts strings as binary numbers.
    alpha, beta = determinants[:, 0, 0], determinants[:, 1, 0]
    table = np.zeros((len(alpha.unique()), len(beta.unique())))
    table[np.searchsorted(alpha.unique(), alpha), np.searchsorted(beta.unique(), beta)] = vector
    expected, _ = spin_op.spin_square(table / np.linalg.norm(vector), 4, (n_alpha, n_beta))
    assert spin_squared(sector, determinants, torch.from_numpy(vector) + 0j) == pytest.approx(expected, abs=1e-10)


def test_spin_squared_tells_a_singlet_from_a_triplet():
    hamiltonian = MolecularHamiltonian(HubbardChain(n_sites=4, u=4.0).integrals())
    determinants = hamiltonian.sector.determinants()
    vectors = np.linalg.eigh(hamiltonian.dense(determinants).numpy())[1]
    found = [spin_squared(hamiltonian.sector, determinants, torch.from_numpy(vectors[:, k]) + 0j) for k in (0, 1)]
    assert found == pytest.approx([0.0, 2.0], abs=1e-8)


def test_spin_squared_of_combinations_is_that_of_their_determinants():
    from nnqs_lightning.fock.spin_flip import expand

    for parity in (1, -1):
        folded = Sector(4, 2, 2, parity)
        representatives = folded.determinants()
        psi = torch.randn(len(representatives), generator=torch.Generator().manual_seed(2), dtype=torch.float64) + 0j
        whole = expand(representatives, parity)
        expected = spin_squared(Sector(4, 2, 2), whole.determinants, whole.share * psi[whole.member])
        assert spin_squared(folded, representatives, psi) == pytest.approx(expected, abs=1e-10)


def test_an_exact_line_is_extrapolated_exactly():
    x = [0.4, 0.2, 0.1, 0.05]
    line = zero_extrapolation(x, [-3.0 + 0.7 * value for value in x])
    assert line is not None
    assert (line.intercept, line.slope) == pytest.approx((-3.0, 0.7))
    assert line.error < 1e-9


def test_scatter_about_the_line_is_its_error_and_too_few_points_give_none():
    assert zero_extrapolation([0.2, 0.1], [-1.0, -1.1]) is None
    scattered = zero_extrapolation([0.4, 0.2, 0.1, 0.05], [-2.71, -2.87, -2.92, -2.97])
    assert scattered is not None
    assert 1e-3 < scattered.error < 2e-2


def test_standard_error_is_that_of_independent_values():
    values = np.random.default_rng(0).normal(size=400)
    assert standard_error(list(values)) == pytest.approx(values.std(ddof=1) / 20, rel=1e-12)


def test_beyond_the_limit_every_truncation_is_screened_alike(water, cisd):
    order = cisd.coefficients.abs().argsort(descending=True, stable=True)
    for limits, screening, note in (
        (Limits(truncations=2), 0.0, "all couplings"),
        (Limits(truncations=2, exact_couplings=100, screening=1e-3), 1e-3, "screened at 0.001 Ha"),
    ):
        figures = set_figures(water, cisd.determinants, log_of(cisd.coefficients), limits)
        assert rows_of(figures)["second_order"].note == note
        for truncation in figures.truncations:
            heavy = order[: truncation.n_determinants]
            state = ground_state(water, cisd.determinants[heavy], cisd.coefficients[heavy])
            expected = outside(water, state, screening).second_order
            assert truncation.second_order == pytest.approx(expected, rel=1e-6), truncation
