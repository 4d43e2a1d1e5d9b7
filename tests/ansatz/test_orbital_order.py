"""Orbital orders are permutations, and physical ones do not depend on how the orbitals are listed."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from nnqs_lightning.ansatz import AsGiven, EnergyOrder, ExplicitOrder, FiedlerOrder, RandomOrder, Reversed
from nnqs_lightning.ansatz.orbital_physics import fock_diagonal, reference_occupation
from nnqs_lightning.errors import UserError
from nnqs_lightning.nn.positional import fiedler_vector

ORDERS = {
    "as_given": AsGiven,
    "reversed": Reversed,
    "energy": EnergyOrder,
    "energy_descending": partial(EnergyOrder, descending=True),
    "fiedler": FiedlerOrder,
    "random": partial(RandomOrder, seed=4),
    "explicit": partial(ExplicitOrder, permutation=[3, 1, 4, 0, 2]),
}


def relist(integrals, permutation):
    """The same system with its orbitals listed in another order."""
    h1e = integrals.h1e[np.ix_(permutation, permutation)]
    eri = integrals.eri[np.ix_(permutation, permutation, permutation, permutation)]
    return replace(integrals, h1e=h1e, eri=eri)


@pytest.mark.parametrize("name", ORDERS)
def test_every_order_is_a_permutation_and_is_reproducible(make_integrals, name):
    first, second = (ORDERS[name](make_integrals(5, 2, 1)).permutation().tolist() for _ in range(2))
    assert sorted(first) == list(range(5))
    assert first == second


def test_simple_orders(make_integrals):
    integrals = make_integrals(4, 2, 1, mo_energy=np.array([0.5, -1.0, 0.0, -2.0]))
    assert AsGiven(integrals).permutation().tolist() == [0, 1, 2, 3]
    assert Reversed(integrals).permutation().tolist() == [3, 2, 1, 0]
    assert EnergyOrder(integrals).permutation().tolist() == [3, 1, 2, 0]
    assert EnergyOrder(integrals, descending=True).permutation().tolist() == [0, 2, 1, 3]
    assert ExplicitOrder(integrals, [2, 0, 3, 1]).permutation().tolist() == [2, 0, 3, 1]
    random = [RandomOrder(integrals, seed).permutation().tolist() for seed in range(8)]
    assert len(set(map(tuple, random))) > 1


@pytest.mark.parametrize("order", [EnergyOrder, FiedlerOrder])
def test_physical_orders_follow_the_orbitals_through_another_list(make_integrals, order):
    integrals = make_integrals(5, 2, 1)
    permutation = np.array([2, 4, 0, 3, 1])
    there = order(relist(integrals, permutation)).permutation()
    here = order(integrals).permutation().tolist()
    # The direction of a Fiedler order is a convention of the list.
    assert permutation[there].tolist() in ([here, here[::-1]] if order is FiedlerOrder else [here])


def test_fiedler_order_restores_a_shuffled_chain():
    n = 7
    chain = np.exp(-np.abs(np.subtract.outer(np.arange(n), np.arange(n))).astype(float))
    shuffle = np.random.default_rng(1).permutation(n)
    found = shuffle[fiedler_vector(torch.from_numpy(chain[np.ix_(shuffle, shuffle)])).argsort().numpy()].tolist()
    assert found in (list(range(n)), list(range(n))[::-1])


def test_fiedler_vector_minimises_the_weighted_squared_distance():
    rng = np.random.default_rng(2)
    weights = np.abs(rng.normal(size=(6, 6)))
    weights = weights + weights.T
    vector = fiedler_vector(torch.from_numpy(weights)).numpy()

    def cost(v):
        return sum(weights[i, j] * (v[i] - v[j]) ** 2 for i in range(6) for j in range(i))

    assert vector.sum() == pytest.approx(0, abs=1e-12)
    assert vector @ vector == pytest.approx(1)
    for _ in range(200):
        trial = rng.normal(size=6)
        trial -= trial.mean()
        assert cost(vector) <= cost(trial / np.linalg.norm(trial)) + 1e-12


def test_fiedler_order_of_a_lattice_follows_its_hopping(make_integrals):
    lattice = replace(make_integrals(5, 2, 2), h1e=np.diag(-np.ones(4), 1) + np.diag(-np.ones(4), -1))
    lattice = replace(lattice, eri=np.zeros((5,) * 4))
    assert FiedlerOrder(lattice, source="one_electron").permutation().tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(UserError, match=r"model\.ansatz\.orbital_order"):
        FiedlerOrder(lattice).permutation()


def determinant_energy(integrals, occupation):
    """⟨D|H|D⟩ − e_core, summed over spin orbitals."""
    energy = 0.0
    electrons = [(p, s) for p in range(integrals.n_orb) for s in (0, 1) if occupation[p, s]]
    for p, s in electrons:
        energy += integrals.h1e[p, p]
        for q, t in electrons:
            energy += 0.5 * integrals.eri[p, p, q, q] - 0.5 * (s == t) * integrals.eri[p, q, q, p]
    return energy


@pytest.mark.parametrize("seed", range(4))
def test_reference_occupation_cannot_be_lowered_by_a_single_replacement(make_integrals, seed):
    integrals = make_integrals(5, 3, 2, seed=seed)
    occupation = reference_occupation(integrals)
    assert occupation.sum(0).tolist() == [3, 2]
    lowest = determinant_energy(integrals, occupation)
    for spin in (0, 1):
        for source in np.flatnonzero(occupation[:, spin]):
            for target in np.flatnonzero(occupation[:, spin] == 0):
                trial = occupation.copy()
                trial[source, spin], trial[target, spin] = 0, 1
                assert determinant_energy(integrals, trial) >= lowest - 1e-9
    permutation = np.array([2, 4, 0, 3, 1])
    assert np.array_equal(reference_occupation(relist(integrals, permutation)), occupation[permutation])


def test_fock_diagonal_is_the_energy_of_adding_an_electron(make_integrals):
    integrals = make_integrals(5, 2, 2, mo_energy=np.arange(5.0))
    occupation = reference_occupation(integrals)
    added = occupation.copy()
    added[4, 0] = 1
    gain = determinant_energy(integrals, added) - determinant_energy(integrals, occupation)
    assert fock_diagonal(integrals)[4] == pytest.approx(gain)
