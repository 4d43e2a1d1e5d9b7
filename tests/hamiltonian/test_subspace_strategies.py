"""Every way to sum over a set agrees with the plain scan of all pairs."""

from __future__ import annotations

import pytest
import torch
from fci_oracle import molecular_integrals, random_integrals
from torch import Tensor

from nnqs_lightning.errors import UserError
from nnqs_lightning.hamiltonian import MolecularHamiltonian, Strategy

CASES = ["CH2 triplet", "NH doublet cation", (9, 4, 3), (5, 2, 0), (33, 1, 1), (66, 1, 1)]
FAST = [strategy for strategy in Strategy if strategy is not Strategy.pair_scan]


def random_set(hamiltonian: MolecularHamiltonian, n: int) -> tuple[Tensor, Tensor]:
    """Up to ``n`` determinants of the sector in random order and their log ψ."""
    generator = torch.Generator().manual_seed(8)
    determinants = hamiltonian.sector.determinants()
    chosen = determinants[torch.randperm(len(determinants), generator=generator)[:n]]
    return chosen, torch.randn(len(chosen), dtype=torch.complex128, generator=generator).log()


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("size", [1, 40, 600])
def test_strategies_agree_with_the_pair_scan(case: str | tuple[int, int, int], size: int) -> None:
    integrals = molecular_integrals(case) if isinstance(case, str) else random_integrals(*case)
    hamiltonian = MolecularHamiltonian(integrals)
    determinants, log_psi = random_set(hamiltonian, size)
    rows = torch.randperm(len(determinants), generator=torch.Generator().manual_seed(9))[: 1 + len(determinants) // 2]
    expected = hamiltonian.local_energies(determinants, log_psi, strategy=Strategy.pair_scan)
    for strategy in FAST:
        values = hamiltonian.local_energies(determinants, log_psi, strategy=strategy)
        torch.testing.assert_close(values, expected, rtol=1e-10, atol=1e-10)
        some = hamiltonian.local_energies(determinants, log_psi, rows=rows, strategy=strategy)
        torch.testing.assert_close(some, expected[rows], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("strategy", Strategy)
def test_threads_do_not_change_a_bit(strategy: Strategy) -> None:
    hamiltonian = MolecularHamiltonian(random_integrals(9, 4, 3))
    determinants, log_psi = random_set(hamiltonian, 300)
    n_threads = torch.get_num_threads()
    values = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            values.append(hamiltonian.local_energies(determinants, log_psi, strategy=strategy))
    finally:
        torch.set_num_threads(n_threads)
    assert torch.equal(*values)


@pytest.mark.parametrize("strategy", Strategy)
def test_no_rows_give_no_energies(strategy: Strategy) -> None:
    hamiltonian = MolecularHamiltonian(random_integrals(9, 4, 3))
    determinants, log_psi = random_set(hamiltonian, 3)
    none = torch.zeros(0, dtype=torch.int64)
    assert len(hamiltonian.local_energies(determinants, log_psi, rows=none, strategy=strategy)) == 0
    assert len(hamiltonian.local_energies(determinants[:0], log_psi[:0], strategy=strategy)) == 0


def test_a_determinant_that_occurs_twice_is_refused() -> None:
    hamiltonian = MolecularHamiltonian(random_integrals(9, 4, 3))
    determinants, log_psi = random_set(hamiltonian, 3)
    twice = torch.cat([determinants, determinants[:1]])
    with pytest.raises(UserError, match="1 determinants occur twice"):
        hamiltonian.local_energies(twice, torch.cat([log_psi, log_psi[:1]]))


def test_the_cost_model_prefers_what_each_set_suits() -> None:
    hamiltonian = MolecularHamiltonian(random_integrals(9, 4, 3))
    whole = hamiltonian.sector.determinants()

    def cheapest(determinants: Tensor) -> Strategy:
        costs = hamiltonian.strategy_costs(determinants)
        return min(costs, key=lambda strategy: costs[strategy])

    assert cheapest(whole) is Strategy.string_factored
    assert cheapest(whole[:: len(whole) // 20]) is Strategy.pair_scan
    large = MolecularHamiltonian(random_integrals(20, 3, 3))
    near = large.connected_states(large.sector.aufbau()).determinants
    costs = large.strategy_costs(near)
    assert costs[Strategy.string_groups] < min(costs[Strategy.string_factored], costs[Strategy.hash])
