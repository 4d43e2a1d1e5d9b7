"""Decoding trees without a network: thermal occupations to draw from, and recorded draws to walk again."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nnqs_lightning.ansatz.base import AutoregressiveAnsatz
from nnqs_lightning.fock import Sector, pack, unpack
from nnqs_lightning.sampling import prefix, random, tree
from nnqs_lightning.sampling.leaves import Leaves


@dataclass
class Prefixes:
    """Decoding state of :class:`ThermalAnsatz`."""

    depth: int
    alpha: Tensor
    beta: Tensor
    hashes: Tensor

    def __len__(self) -> int:
        return len(self.hashes)


class _NetworkFree(AutoregressiveAnsatz):
    """Decodes orbitals from the last to the first; offers what a sampler calls and no more."""

    def log_psi(self, determinants: Tensor) -> Tensor:
        raise NotImplementedError

    def conditionals(self, tokens: Tensor) -> Tensor:
        raise NotImplementedError

    def phase(self, determinants: Tensor) -> Tensor:
        return torch.zeros(len(determinants), dtype=torch.float64)

    def to_tokens(self, determinants: Tensor) -> Tensor:
        occupation = unpack(determinants, self.sector.n_orb)
        return (occupation[:, :, 0] + 2 * occupation[:, :, 1]).flip(1)

    def to_determinants(self, tokens: Tensor) -> Tensor:
        tokens = tokens.flip(1)
        return pack(torch.stack([tokens & 1, tokens >> 1], dim=2))


class ThermalAnsatz(_NetworkFree):
    """Fermi–Dirac occupations at fixed particle number, each conditional roughened by noise hashed from its prefix.

    Args:
        sector: where it lives.
        energies: orbital energies, float64 [n_orb], hartree.
        temperature: hartree; it fixes the weight of the aufbau determinant.
        noise: standard deviation of the noise on the logits.
    """

    def __init__(self, sector: Sector, energies: Tensor, temperature: float, noise: float = 0.5) -> None:
        super().__init__()
        self.sector = sector
        self.noise = noise
        self.boltzmann = (-energies.flip(0) / temperature).double()
        most = max(sector.n_alpha, sector.n_beta)
        # log partition functions of what is left: [depth, electrons].
        self.log_z = torch.full((sector.n_orb + 1, most + 1), -torch.inf, dtype=torch.float64)
        self.log_z[-1, 0] = 0.0
        for depth in reversed(range(sector.n_orb)):
            empty = self.log_z[depth + 1]
            filled = torch.cat([torch.tensor([-torch.inf]), self.log_z[depth + 1, :-1] + self.boltzmann[depth]])
            self.log_z[depth] = torch.logaddexp(empty, filled)

    def begin(self) -> Prefixes:
        one = torch.ones(1, dtype=torch.int64)
        return Prefixes(0, one * self.sector.n_alpha, one * self.sector.n_beta, one)

    def log_conditionals(self, state: Prefixes) -> Tensor:
        behind = self.log_z[state.depth + 1]
        columns = []
        for token in range(4):
            logit = torch.zeros(len(state), dtype=torch.float64)
            for bit, left in ((token & 1, state.alpha), (token >> 1, state.beta)):
                rest = left - bit
                logit = logit + bit * self.boltzmann[state.depth] + behind[rest.clamp(min=0)]
                logit = logit.masked_fill(rest < 0, -torch.inf)
            columns.append(logit + self.noise * torch.special.ndtri(random.uniform(state.hashes, token)))
        return torch.stack(columns, 1).log_softmax(1)

    def advance(self, state: Prefixes, parents: Tensor, tokens: Tensor) -> Prefixes:
        return Prefixes(
            state.depth + 1,
            state.alpha[parents] - (tokens & 1),
            state.beta[parents] - (tokens >> 1),
            random.extend(state.hashes[parents], tokens),
        )


@dataclass
class Intervals:
    """Decoding state of :class:`RecordedTree`: the leaves below each prefix."""

    depth: int
    first: Tensor
    last: Tensor

    def __len__(self) -> int:
        return len(self.first)


class RecordedTree(_NetworkFree):
    """Any weights on given determinants as conditionals: those of a draw, which :meth:`rule` repeats, or a density.

    Args:
        sector: where it lives.
        determinants: int64 [N, 2, W], in any order.
        weights: [N], positive; walkers (int64) or probabilities (float64).
    """

    def __init__(self, sector: Sector, determinants: Tensor, weights: Tensor) -> None:
        super().__init__()
        self.sector = sector
        self.leaves = Leaves(prefix.pack(self.to_tokens(determinants)), weights, weights.double().log())
        self.leaves.sort()
        tokens = prefix.unpack(self.leaves.keys, sector.n_orb)
        self.walkers = torch.cat([weights.new_zeros(1), self.leaves.values.cumsum(0)])
        # Number of leaves before each whose token at a depth is at most k, so that a child's interval is a difference.
        self.ranks = torch.stack([(tokens == k).cumsum(0, dtype=torch.int32) for k in range(4)])
        self.ranks = torch.cat([torch.zeros_like(self.ranks[:, :1]), self.ranks], 1)

    def begin(self) -> Intervals:
        return Intervals(0, torch.zeros(1, dtype=torch.int64), torch.tensor([len(self.leaves)]))

    def _bounds(self, state: Intervals) -> Tensor:
        """Lexicographic order puts the children of a node side by side: int64 [M, 5]."""
        sizes = self.ranks[:, state.last, state.depth] - self.ranks[:, state.first, state.depth]
        return torch.cat([state.first[None], state.first + sizes.cumsum(0)]).T

    def log_conditionals(self, state: Intervals) -> Tensor:
        walkers = self.walkers[self._bounds(state)].diff(dim=1).double()
        return (walkers / walkers.sum(1, keepdim=True)).log()

    def advance(self, state: Intervals, parents: Tensor, tokens: Tensor) -> Intervals:
        bounds = self._bounds(state)[parents]
        rows = torch.arange(len(parents))
        return Intervals(state.depth + 1, bounds[rows, tokens], bounds[rows, tokens + 1])

    @staticmethod
    def rule(nodes: tree.Nodes, log_conditionals: Tensor) -> tuple[Tensor, Tensor]:
        """The recorded number of walkers on each child."""
        counts = (nodes.values.unsqueeze(1) * log_conditionals.exp()).round().long()
        return counts, counts > 0
