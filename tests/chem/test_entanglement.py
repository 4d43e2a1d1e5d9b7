"""Orbital entropies against a brute-force partial trace."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from nnqs_lightning.chem import HydrogenChain
from nnqs_lightning.chem.cluster import CIVector, cisd_vector
from nnqs_lightning.chem.entanglement import mutual_information, orbital_entropies, pair_entropies


def random_vector(n_orb: int, n_alpha: int, n_beta: int, seed: int = 0) -> CIVector:
    rows = []
    for up in combinations(range(n_orb), n_alpha):
        for down in combinations(range(n_orb), n_beta):
            occupation = np.zeros((n_orb, 2), dtype=np.uint8)
            occupation[list(up), 0] = occupation[list(down), 1] = 1
            rows.append(occupation)
    coefficients = np.random.default_rng(seed).normal(size=len(rows))
    return CIVector(np.array(rows), coefficients / np.linalg.norm(coefficients))


def create(state: dict[tuple[int, ...], float], mode: int, order: list[int]) -> dict[tuple[int, ...], float]:
    """a†_mode on a state over modes in the given order."""
    place = order.index(mode)
    created = {}
    for occupied, amplitude in state.items():
        if place not in occupied:
            sign = (-1) ** sum(other < place for other in occupied)
            created[tuple(sorted((*occupied, place)))] = sign * amplitude
    return created


def traced_entropy(vector: CIVector, orbitals: list[int]) -> float:
    """Entropy of some orbitals: rebuild the state with their modes first, operator by operator, trace out the rest."""
    n_orb = vector.occupations.shape[1]
    modes = [2 * p + spin for p in range(n_orb) for spin in (0, 1)]
    order = [m for m in modes if m // 2 in orbitals] + [m for m in modes if m // 2 not in orbitals]
    state = np.zeros((2,) * len(modes))
    for occupation, coefficient in zip(vector.occupations, vector.coefficients, strict=True):
        ket = {(): float(coefficient)}
        operators = [2 * int(p) + spin for spin in (0, 1) for p in np.flatnonzero(occupation[:, spin])]
        for mode in reversed(operators):
            ket = create(ket, mode, order)
        for occupied, amplitude in ket.items():
            bits = np.zeros(len(modes), dtype=int)
            bits[list(occupied)] = 1
            state[tuple(bits)] += amplitude
    schmidt = np.linalg.svd(state.reshape(4 ** len(orbitals), -1), compute_uv=False) ** 2
    schmidt = schmidt[schmidt > 1e-15]
    return float(-(schmidt * np.log(schmidt)).sum())


@pytest.mark.parametrize("electrons", [(2, 2), (3, 1), (2, 1)])
def test_entropies_are_those_of_the_partial_trace(electrons: tuple[int, int]) -> None:
    vector = random_vector(4, *electrons)
    np.testing.assert_allclose(orbital_entropies(vector), [traced_entropy(vector, [p]) for p in range(4)], atol=1e-12)
    pairs = pair_entropies(vector)
    for p, q in combinations(range(4), 2):
        assert pairs[p, q] == pytest.approx(traced_entropy(vector, [p, q]), abs=1e-12)
    np.testing.assert_array_equal(pairs, pairs.T)


def test_a_determinant_has_no_entanglement() -> None:
    vector = random_vector(3, 2, 1).truncated(1)
    np.testing.assert_array_equal(orbital_entropies(vector), 0.0)
    np.testing.assert_array_equal(mutual_information(vector), 0.0)


def test_two_orbitals_of_a_pure_state_share_all_their_information() -> None:
    vector = random_vector(2, 1, 1)
    single = orbital_entropies(vector)
    assert single[0] == pytest.approx(single[1])
    assert mutual_information(vector)[0, 1] == pytest.approx(2 * single[0])


def test_bonding_and_antibonding_partners_are_most_entangled() -> None:
    information = mutual_information(cisd_vector(HydrogenChain(6, spacing=3.0).integrals()).truncated(200))
    assert (information >= 0).all()
    assert information[2, 3] == information.max()
