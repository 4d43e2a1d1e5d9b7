"""Markov-chain sampling for wave functions without conditionals."""

from __future__ import annotations

import torch
from torch import Tensor

from nnqs_lightning import distributed
from nnqs_lightning.ansatz.base import Ansatz
from nnqs_lightning.errors import UserError
from nnqs_lightning.fock import SampleBatch, pack, unpack
from nnqs_lightning.sampling import random, tree
from nnqs_lightning.sampling.base import Sampler
from nnqs_lightning.sampling.stats import sample_stats

ALPHA, BETA = 0, 1
MAX_STARTS = 100
"""Random determinants tried for each chain before giving up."""


class MetropolisSampler(Sampler):
    """Chains of particle-conserving moves, accepted with probability min(1, |ψ(D')|² / |ψ(D)|²) (Metropolis 1953).

    A move takes one electron to an empty orbital of its spin, or one of each spin at once. Both are symmetric
    proposals and connect the whole sector. Chains start from the aufbau determinant, or from random ones where ψ
    vanishes there, and after a burn-in every visit counts; visits to one determinant are added up over all chains.
    Visits are correlated: error bars of an energy that take them for independent are too small.

    ``log_psi`` is what the ansatz gives: of an ansatz that is not normalised it holds up to a constant.

    Args:
        n_chains: number of chains, shared out to the ranks.
        n_sweeps: visits kept of each chain.
        burn_in: sweeps of each chain that are thrown away.
        moves_per_sweep: moves between two visits; null for the number of electrons.

    Raises:
        UserError: a number below its minimum.
    """

    def __init__(
        self, n_chains: int = 256, n_sweeps: int = 32, burn_in: int = 32, moves_per_sweep: int | None = None
    ) -> None:
        for name, value, least in (
            ("n_chains", n_chains, 1),
            ("n_sweeps", n_sweeps, 1),
            ("burn_in", burn_in, 0),
            ("moves_per_sweep", 1 if moves_per_sweep is None else moves_per_sweep, 1),
        ):
            if value < least:
                raise UserError(f"data.sampler.{name} is {value}: set it to {least} or more")
        self.n_chains = n_chains
        self.n_sweeps = n_sweeps
        self.burn_in = burn_in
        self.moves_per_sweep = moves_per_sweep

    def sample(self, ansatz: Ansatz, *, seed: int, step: int, stream: int = 0) -> SampleBatch:
        """See :meth:`Sampler.sample`; ``counts`` are visits.

        Raises:
            UserError: no determinant with ψ ≠ 0 was found to start from.
        """
        rank, world = distributed.rank(), distributed.world_size()
        chains = torch.arange(self.n_chains * rank // world, self.n_chains * (rank + 1) // world)
        key = torch.tensor(random.draw_key(seed, step, stream))
        with torch.no_grad():
            determinants, counts, acceptance = self._visits(
                ansatz, random.extend(key, chains.to(tree.device_of(ansatz)))
            )
            determinants, counts = _merged(*(distributed.all_gather_rows(x)[0] for x in (determinants, counts)))
            own = slice(len(counts) * rank // world, len(counts) * (rank + 1) // world)
            determinants, counts = determinants[own], counts[own]
            log_psi = ansatz.log_psi(determinants)
        n_visits = self.n_chains * self.n_sweeps
        weights = counts.double() / n_visits
        stats = sample_stats(weights) | {"sampling/walkers": float(n_visits)}
        stats["sampling/acceptance"] = float(distributed.all_reduce_sum(acceptance)) / self.n_chains
        return SampleBatch(determinants, log_psi, weights, counts, n_visits, step, stats)

    def _visits(self, ansatz: Ansatz, hashes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Distinct determinants visited by these chains, how often, and the sum of the chains' acceptance rates."""
        sector = ansatz.sector
        occupation = _start(ansatz, hashes)
        log_p = 2 * ansatz.log_psi(pack(occupation)).real
        per_sweep = self.moves_per_sweep or max(sector.n_alpha + sector.n_beta, 1)
        n_moves = (self.burn_in + self.n_sweeps) * per_sweep
        accepted = torch.zeros((), dtype=torch.float64, device=hashes.device)
        visited = []
        for move in range(1, n_moves + 1):
            # 0 is the hash of the start.
            dice = random.extend(hashes, torch.full_like(hashes, move))
            proposal = _moved(occupation, dice)
            proposed_log_p = 2 * ansatz.log_psi(pack(proposal)).real
            accept = random.uniform(dice, 6).log() < proposed_log_p - log_p
            occupation = torch.where(accept[:, None, None], proposal, occupation)
            log_p = torch.where(accept, proposed_log_p, log_p)
            accepted += accept.sum() / n_moves
            if move % per_sweep == 0 and move > self.burn_in * per_sweep:
                visited.append(pack(occupation))
        states = torch.cat(visited)
        return *_merged(states, torch.ones_like(states[:, 0, 0])), accepted


def _start(ansatz: Ansatz, hashes: Tensor) -> Tensor:
    """One determinant with ψ ≠ 0 for each chain, as occupations [chains, n_orb, 2]."""
    sector = ansatz.sector
    aufbau = unpack(ansatz.sector.aufbau().to(hashes.device), sector.n_orb)
    occupation = aufbau.expand(len(hashes), -1, -1).clone()
    dice = random.extend(hashes, torch.zeros_like(hashes))
    for _ in range(MAX_STARTS):
        dead = ansatz.log_psi(pack(occupation)).real == -torch.inf
        if not bool(dead.any()):
            return occupation
        for spin, n_electrons in ((ALPHA, sector.n_alpha), (BETA, sector.n_beta)):
            keys = torch.stack([random.uniform(dice, spin * sector.n_orb + p) for p in range(sector.n_orb)], 1)
            filled = (keys.argsort(1).argsort(1) < n_electrons).long()
            occupation[dead, :, spin] = filled[dead]
        dice = random.extend(dice, torch.zeros_like(dice))
    raise UserError(
        f"ψ vanishes on the aufbau determinant and on {MAX_STARTS} random ones: check model.ansatz, or choose another "
        "data.sampler than MetropolisSampler"
    )


def _moved(occupation: Tensor, dice: Tensor) -> Tensor:
    """A symmetric proposal: an α electron moves, a β electron moves, or both do, each with probability ⅓."""
    kind = (3 * random.uniform(dice, 0)).long()
    proposal = occupation.clone()
    for spin in (ALPHA, BETA):
        string = occupation[:, :, spin]
        electron = _pick(string, random.uniform(dice, 1 + 2 * spin))
        hole = _pick(1 - string, random.uniform(dice, 2 + 2 * spin))
        movable = (string.sum(1) > 0) & (string.sum(1) < string.shape[1])
        moves = (movable & (kind != 1 - spin)).long()[:, None]
        proposal[:, :, spin] = string - moves * electron + moves * hole
    return proposal


def _pick(flags: Tensor, u: Tensor) -> Tensor:
    """One of the set flags of each row, chosen by a uniform: [N, n] → 0/1 [N, n]."""
    which = (u * flags.sum(1)).long() + 1
    return ((flags.cumsum(1) == which[:, None]) & (flags == 1)).long()


def _merged(determinants: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Each determinant once, sorted, with its counts added up."""
    rows, place = determinants.flatten(1).unique(dim=0, return_inverse=True)
    totals = counts.new_zeros(len(rows)).index_add_(0, place, counts)
    return rows.view(-1, *determinants.shape[1:]), totals
