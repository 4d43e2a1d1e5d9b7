"""Autoregressive sampling with walkers: what systematic and multinomial sampling share."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from nnqs_lightning import distributed
from nnqs_lightning.ansatz.base import Ansatz
from nnqs_lightning.errors import UserError
from nnqs_lightning.fock import SampleBatch
from nnqs_lightning.sampling import random, tree
from nnqs_lightning.sampling.autoregressive import AutoregressiveSampler
from nnqs_lightning.sampling.leaves import collect, states
from nnqs_lightning.sampling.stats import sample_stats

COLLAPSED = 8
"""So few unique determinants are a warning, where the sector is at least ten times as large."""
DEAD_BAND = 0.1
"""Relative distance from the target within which the number of walkers rests."""
GAIN = 1.5
"""Power of target / unique by which walkers change: stable where unique grows no faster than walkers^(4/3)."""
MAX_CHANGE = 10.0
"""Largest factor by which the number of walkers changes in a step."""


class WalkerSampler(AutoregressiveSampler):
    """Walkers go down the decoding tree and are shared out among the children of each node they pass.

    Every walker follows |ψ|², so weight = count / n_walkers has the expectation |ψ|² on each determinant. Only nodes
    with walkers are visited, so time grows with the number of unique determinants, not with that of walkers.

    Raises:
        UserError: numbers of walkers, targets or bounds out of range.

    Args:
        n_walkers: number of walkers; with a target, the number at the first step.
        target_unique: number of unique determinants to hold by adapting the number of walkers; null for a fixed
            number of walkers.
        min_walkers: floor of the adaptation.
        max_walkers: ceiling of the adaptation; null for the largest number that the sampler takes.
        max_cache_bytes: bound on the decoder's keys and values; prefixes beyond it wait and are decoded later.
        chunk_size: largest number of prefixes decoded together; the draw does not depend on it.
    """

    walker_limit: int
    """Largest number of walkers whose arithmetic is exact."""

    def __init__(
        self,
        n_walkers: int | float = 1_000_000_000,
        target_unique: int | None = None,
        min_walkers: int | float = 100,
        max_walkers: int | float | None = None,
        max_cache_bytes: int = 2**30,
        chunk_size: int = 4096,
    ) -> None:
        super().__init__(max_cache_bytes, chunk_size)
        self.n_walkers = self._walkers("n_walkers", n_walkers)
        self.min_walkers = self._walkers("min_walkers", min_walkers)
        self.max_walkers = self.walker_limit if max_walkers is None else self._walkers("max_walkers", max_walkers)
        if self.min_walkers > self.max_walkers:
            raise UserError(
                f"data.sampler.min_walkers is {self.min_walkers}, above max_walkers ({self.max_walkers}): lower it"
            )
        if target_unique is not None and target_unique < 1:
            raise UserError(f"data.sampler.target_unique is {target_unique}: set it to 1 or more")
        self.target_unique = target_unique
        self._collapsed = False
        self._sector_size = 0

    @abstractmethod
    def split(self, counts: Tensor, log_conditionals: Tensor, hashes: Tensor) -> Tensor:
        """Share out walkers among children.

        Args:
            counts: walkers of each node, int64 [M], all positive.
            log_conditionals: float64 [M, 4]; exp sums to one in each row.
            hashes: prefix hashes, int64 [M]: the only source of randomness.

        Returns:
            Walkers of each child, int64 [M, 4]; rows sum to ``counts``, children of probability zero get none.
        """

    def sample(self, ansatz: Ansatz, *, seed: int, step: int, stream: int = 0) -> SampleBatch:
        """See :meth:`Sampler.sample`; counts sum to ``n_walkers`` exactly.

        Raises:
            UserError: the ansatz has no conditionals, the target exceeds the sector, one path exceeds the cache.
        """
        ansatz = self.checked(ansatz, "target_unique", self.target_unique)
        self._sector_size = ansatz.sector.size
        rows = self.rows(ansatz)
        value = torch.tensor([self.n_walkers], dtype=torch.int64, device=tree.device_of(ansatz))
        with torch.inference_mode():
            root = tree.Branch.root(value, random.draw_key(seed, step, stream), ansatz.sector)
            share = self.own_share(ansatz, root, self._rule, self.n_walkers)
            found = collect(chain(share.leaves, tree.walk(ansatz, share.branches, self._rule, rows)))
        # Not in inference mode: autograd may save what leaves this method.
        found = self.settle(found, ansatz.n_steps)
        self._check_total(found.values)
        determinants, log_psi = states(ansatz, found, rows)
        counts = found.values
        del found
        weights = counts.double().div_(self.n_walkers)
        stats = sample_stats(weights) | {"sampling/walkers": float(self.n_walkers)}
        return SampleBatch(determinants, log_psi, weights, counts, self.n_walkers, step, stats)

    def observe(self, batch: SampleBatch) -> None:
        """Move the number of walkers towards the target, by a power of target / unique."""
        super().observe(batch)
        unique = batch.stats["sampling/unique"]
        self._warn_of_collapse(unique, batch)
        if self.target_unique is None or abs(unique / self.target_unique - 1) <= DEAD_BAND:
            return
        change = min(max((self.target_unique / unique) ** GAIN, 1 / MAX_CHANGE), MAX_CHANGE)
        self.n_walkers = min(max(round(self.n_walkers * change), self.min_walkers), self.max_walkers)

    def state_dict(self) -> dict[str, Any]:
        """The number of walkers in force, and the density by which ranks share the next draw."""
        return super().state_dict() | {"n_walkers": self.n_walkers, "collapsed": self._collapsed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`; a number of walkers that nothing adapts stays as configured."""
        super().load_state_dict(state)
        if self.target_unique is not None:
            self.n_walkers = state.get("n_walkers", self.n_walkers)
        self._collapsed = state.get("collapsed", False)

    def _rule(self, nodes: tree.Nodes, log_conditionals: Tensor) -> tuple[Tensor, Tensor]:
        counts = self.split(nodes.values, log_conditionals, nodes.hashes)
        return counts, counts > 0

    def _check_total(self, counts: Tensor) -> None:
        total = int(distributed.all_reduce_sum(counts.sum()))
        if total != self.n_walkers:
            raise RuntimeError(
                f"the ranks hold {total} of {self.n_walkers} walkers: they disagree about the top of the tree. Their "
                "parameters or their hardware differ; run ranks of one kind, or the ansatz in float64"
            )

    def _warn_of_collapse(self, unique: float, batch: SampleBatch) -> None:
        collapsed = unique <= COLLAPSED and self._sector_size >= 10 * COLLAPSED
        if collapsed and not self._collapsed and distributed.rank() == 0:
            warnings.warn(
                f"the sample of step {batch.step} has collapsed: {unique:.0f} unique determinants carry all "
                f"{self.n_walkers} walkers. What is never sampled never grows: raise data.sampler.n_walkers, set "
                "data.sampler.target_unique, or choose nnqs_lightning.sampling.GumbelTopKSampler",
                stacklevel=2,
            )
        self._collapsed = collapsed

    def _walkers(self, name: str, value: int | float) -> int:
        if not 1 <= value <= self.walker_limit or value != int(value):
            raise UserError(
                f"data.sampler.{name} is {value}: set it to a whole number from 1 to {self.walker_limit}, "
                f"the largest that {type(self).__name__} counts exactly"
            )
        return int(value)
