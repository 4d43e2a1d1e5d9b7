"""Laws of the Markov chains. Seeds are fixed; with fresh ones the chi-square would fail once in 1e4."""

import numpy as np
import pytest
import torch
from scipy import stats
from table_ansatz import TableAnsatz

from nnqs_lightning.ansatz.base import Ansatz
from nnqs_lightning.errors import UserError
from nnqs_lightning.fock import Sector, pack, unpack
from nnqs_lightning.sampling import MetropolisSampler, SumOverStates
from nnqs_lightning.sampling.metropolis import _moved
from nnqs_lightning.sampling.random import draw_key, extend


class Vanishing(Ansatz):
    """ψ = 1 on a part of the sector."""

    def __init__(self, sector: Sector, alive: int) -> None:
        super().__init__()
        self.sector = sector
        self.alive = sector.determinants()[len(sector.determinants()) - alive :].flatten(1)

    def log_psi(self, determinants):
        known = (determinants.flatten(1)[:, None] == self.alive).all(2).any(1)
        return torch.complex(torch.where(known, 0.0, -torch.inf).double(), torch.zeros(len(determinants)).double())


@pytest.mark.parametrize("sector", [Sector(2, 1, 1), Sector(4, 2, 1), Sector(4, 0, 3)])
def test_ends_of_independent_chains_follow_the_exact_distribution(sector):
    ansatz = TableAnsatz(sector, spread=0.7)
    exact = SumOverStates().sample(ansatz, seed=0, step=0)
    batch = MetropolisSampler(n_chains=2000, n_sweeps=1, burn_in=12).sample(ansatz, seed=1, step=0)
    index = {tuple(d.flatten().tolist()): i for i, d in enumerate(exact.determinants)}
    observed = np.zeros(len(index))
    for determinant, count in zip(batch.determinants, batch.counts.tolist(), strict=True):
        observed[index[tuple(determinant.flatten().tolist())]] = count
    expected = exact.weights.numpy() * 2000
    rare = expected < 5
    seen, due = (np.append(x[~rare], x[rare].sum()) for x in (observed, expected))
    assert stats.chisquare(seen[due > 0], due[due > 0] * 2000 / due.sum()).pvalue > 1e-4


def test_moves_keep_the_numbers_of_electrons_and_are_symmetric():
    sector = Sector(4, 2, 1)
    states = unpack(sector.determinants(), sector.n_orb)
    index = {tuple(d.flatten().tolist()): i for i, d in enumerate(sector.determinants())}
    rates = torch.zeros(len(states), len(states))
    dice = extend(torch.full((2000 * len(states),), draw_key(0, 0, 0)), torch.arange(2000 * len(states)))
    moved = pack(_moved(states.repeat(2000, 1, 1), dice))
    for trial, determinant in enumerate(moved.flatten(1).tolist()):
        rates[trial % len(states), index[tuple(determinant)]] += 1 / 2000
    assert (rates - rates.T).abs().max() < 5 * (2 * 0.17 / 2000) ** 0.5
    assert rates.diagonal().max() == 0


def test_visits_are_counted_once_for_each_determinant():
    ansatz = TableAnsatz(Sector(5, 2, 2))
    batch = MetropolisSampler(n_chains=8, n_sweeps=20, burn_in=4).sample(ansatz, seed=0, step=3)
    assert len(batch.determinants.flatten(1).unique(dim=0)) == len(batch)
    assert int(batch.counts.sum()) == batch.n_walkers == 160
    assert float(batch.weights.sum()) == pytest.approx(1)
    torch.testing.assert_close(batch.log_psi, ansatz.log_psi(batch.determinants).detach())
    assert 0 < batch.stats["sampling/acceptance"] < 1
    again = MetropolisSampler(n_chains=8, n_sweeps=20, burn_in=4).sample(ansatz, seed=0, step=3)
    assert torch.equal(again.determinants, batch.determinants)
    assert torch.equal(again.counts, batch.counts)


def test_chains_start_where_the_state_lives_and_stay_there():
    ansatz = Vanishing(Sector(4, 2, 2), alive=12)
    assert ansatz.log_psi(ansatz.sector.aufbau()).real == -torch.inf
    batch = MetropolisSampler(n_chains=16).sample(ansatz, seed=0, step=0)
    assert (batch.log_psi.real == 0).all()
    with pytest.raises(UserError, match="ψ vanishes"):
        MetropolisSampler(n_chains=2).sample(Vanishing(Sector(4, 2, 2), alive=0), seed=0, step=0)


@pytest.mark.parametrize("option", ["n_chains", "n_sweeps", "moves_per_sweep"])
def test_bad_numbers_are_refused(option):
    with pytest.raises(UserError, match=f"data.sampler.{option} is 0: set it to 1 or more"):
        MetropolisSampler(**{option: 0})
