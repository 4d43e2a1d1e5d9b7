"""Screened rows of H: the same states as a plain enumeration and a comparison, found without visiting the others."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fci_oracle import MOLECULES, molecular_integrals, random_integrals
from torch import Tensor

from nnqs_lightning.hamiltonian import ConnectedStates, MolecularHamiltonian

# Fewer electrons than holes, fewer holes than electrons, either by spin; two words; one spin alone.
CASES = [*MOLECULES, (9, 4, 3), (9, 7, 6), (9, 6, 2), (66, 2, 1), (8, 3, 0), (6, 6, 3)]


@pytest.fixture(scope="module", params=CASES, ids=str)
def hamiltonian(request: pytest.FixtureRequest) -> MolecularHamiltonian:
    case = request.param
    return MolecularHamiltonian(molecular_integrals(case) if isinstance(case, str) else random_integrals(*case))


def some_determinants(hamiltonian: MolecularHamiltonian, n: int = 12) -> Tensor:
    aufbau = hamiltonian.sector.aufbau()
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        reached = hamiltonian.connected_states(aufbau).determinants.unique(dim=0)
        aufbau = reached[torch.randperm(len(reached), generator=generator)[:n]]
    return aufbau


def as_matrix(connected: ConnectedStates) -> list[dict[tuple[int, ...], float]]:
    """The rows as dictionaries from states to elements."""
    rows: list[dict[tuple[int, ...], float]] = [{} for _ in connected.offsets[1:]]
    for row, state, element in zip(
        connected.rows.tolist(), connected.determinants.flatten(1).tolist(), connected.elements.tolist(), strict=True
    ):
        assert tuple(state) not in rows[row]
        rows[row][tuple(state)] = element
    return rows


@pytest.mark.parametrize("quantile", [0.0, 0.5, 0.9, 1.0])
def test_screened_states_are_those_of_the_plain_enumeration(hamiltonian: MolecularHamiltonian, quantile: float) -> None:
    determinants = some_determinants(hamiltonian)
    plain = hamiltonian.connected_states(determinants)
    threshold = float(np.quantile(plain.elements.abs().numpy(), quantile))
    is_diagonal = (plain.determinants == determinants[plain.rows]).flatten(1).all(1)
    held = (plain.elements.abs() > threshold) | is_diagonal
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), held.cumsum(0)[plain.offsets[1:] - 1]])
    expected = as_matrix(ConnectedStates(plain.determinants[held], plain.elements[held], offsets))
    screened, is_drawn = hamiltonian.drawn_states(determinants, threshold, n_draws=0, seed=0)
    assert not is_drawn.any()
    torch.testing.assert_close(screened.determinants[screened.offsets[:-1]], determinants)
    for ours, theirs in zip(as_matrix(screened), expected, strict=True):
        assert ours.keys() == theirs.keys()
        np.testing.assert_allclose([ours[state] for state in theirs], list(theirs.values()), rtol=1e-12, atol=1e-12)


def test_a_positive_threshold_of_connected_states_screens(hamiltonian: MolecularHamiltonian) -> None:
    determinants = some_determinants(hamiltonian)
    threshold = float(hamiltonian.connected_states(determinants).elements.abs().median())
    ours = hamiltonian.connected_states(determinants, threshold)
    assert as_matrix(ours) == as_matrix(hamiltonian.drawn_states(determinants, threshold, 0, 0)[0])


def test_draws_have_the_elements_below_the_threshold_as_their_mean(hamiltonian: MolecularHamiltonian) -> None:
    determinants = some_determinants(hamiltonian, 2)
    plain = as_matrix(hamiltonian.connected_states(determinants))
    threshold = float(np.median(np.abs([element for row in plain for element in row.values()])))
    n_draws = 100_000
    connected, is_drawn = hamiltonian.drawn_states(determinants, threshold, n_draws, seed=3)
    for row, elements in enumerate(plain):
        mine = (connected.rows == row) & is_drawn
        states, number = connected.determinants[mine].flatten(1).unique(dim=0, return_inverse=True)
        sums = torch.zeros(len(states), dtype=torch.float64).index_add_(0, number, connected.elements[mine])
        step = connected.elements[mine].abs().max() if mine.any() else 0.0
        drawn = dict(zip(map(tuple, states.tolist()), sums.tolist(), strict=True))
        small = {state: element for state, element in list(elements.items())[1:] if abs(element) <= threshold}
        assert drawn.keys() <= small.keys()
        # A state drawn m times in the mean has a spread of √m steps.
        for state, element in small.items():
            assert abs(drawn.get(state, 0.0) - element) <= 5 * (step * abs(element)) ** 0.5 + 5 * step
