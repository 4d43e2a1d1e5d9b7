"""Sampling without replacement: the k determinants of largest perturbed log probability."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nnqs_lightning import distributed, memory
from nnqs_lightning.ansatz.base import Ansatz, AutoregressiveAnsatz
from nnqs_lightning.errors import UserError
from nnqs_lightning.fock import SampleBatch
from nnqs_lightning.sampling import random, tree
from nnqs_lightning.sampling.autoregressive import AutoregressiveSampler
from nnqs_lightning.sampling.leaves import Leaves, concatenate, states
from nnqs_lightning.sampling.shares import Share
from nnqs_lightning.sampling.stats import sample_stats

MARGIN = 0.2
"""How far below the last draw's threshold a walk looks at first; a walk that finds too few starts again."""
SLACK = 1 / 16
"""Growth of the number of candidates after which they are pruned again."""


class GumbelTopKSampler(AutoregressiveSampler):
    """Exactly k different determinants, drawn without replacement with probabilities |ψ|².

    Stochastic beam search (Kool, van Hoof and Welling, ICML 2019): a node carries the largest of log |ψ|² + Gumbel
    noise among its leaves, the children of a node are drawn given that maximum, and the k largest leaves are kept.

    With κ the (k + 1)-th largest perturbed log probability, leaf D is kept with probability
    q = 1 − exp(−exp(log |ψ|² − κ)) given κ, so Σ_kept (|ψ|² / q) f estimates ⟨f⟩ = Σ_D |ψ(D)|² f(D), the expectation
    over the whole sector, without bias (Kool et al. 2019, section 4.2). The weights are these ratios divided by their
    sum: consistent, with a bias of order 1/k and less variance. They are not |ψ|² renormalised over the kept set. The
    sum is logged as ``sampling/mass``, one on average: times it, weighted means are the unbiased estimates.

    Args:
        n_unique: k, number of determinants to draw; all that have a non-zero probability where those are fewer.
        max_cache_bytes: bound on the decoder's keys and values; prefixes beyond it wait and are decoded later.
        chunk_size: largest number of prefixes decoded together; the draw does not depend on it.

    Raises:
        UserError: n_unique or chunk_size below 1.
    """

    def __init__(self, n_unique: int = 4096, max_cache_bytes: int = 2**30, chunk_size: int = 4096) -> None:
        super().__init__(max_cache_bytes, chunk_size)
        if n_unique < 1:
            raise UserError(f"data.sampler.n_unique is {n_unique}: set it to 1 or more")
        self.n_unique = n_unique
        self._floor = self._threshold = -torch.inf

    def sample(self, ansatz: Ansatz, *, seed: int, step: int, stream: int = 0) -> SampleBatch:
        """See :meth:`Sampler.sample`.

        Raises:
            UserError: the ansatz has no conditionals, k exceeds the sector, one path exceeds the cache.
        """
        ansatz = self.checked(ansatz, "n_unique", self.n_unique)
        rows = self.rows(ansatz)
        key = random.draw_key(seed, step, stream)
        hashes = torch.tensor([key], dtype=torch.int64, device=tree.device_of(ansatz))
        with torch.inference_mode():
            root = tree.Branch.root(_gumbel(random.uniform(hashes, random.TOKENS)), key, ansatz.sector)
            share = self.own_share(ansatz, root, perturb, self.n_unique)
            found, self._threshold = self._top(ansatz, share, rows)
        found = self.settle(found, ansatz.n_steps)
        # P(kept | threshold), which tends to 1 for likely leaves and to |ψ|² e^−κ for rare ones.
        inclusion = -torch.expm1(-torch.exp(found.log_p - self._threshold))
        ratios = found.log_p.exp() / inclusion
        mass = distributed.all_reduce_sum(ratios.sum())
        determinants, log_psi = states(ansatz, found, rows)
        weights = ratios / mass
        stats = sample_stats(weights) | {"sampling/mass": float(mass)}
        return SampleBatch(determinants, log_psi, weights, step=step, stats=stats)

    def observe(self, batch: SampleBatch) -> None:
        """Start the next walk near the threshold of this draw: its result is the same, but sooner there."""
        super().observe(batch)
        self._floor = self._threshold - MARGIN

    def state_dict(self) -> dict[str, Any]:
        """Where the next walk starts."""
        return super().state_dict() | {"floor": self._floor}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`."""
        super().load_state_dict(state)
        self._floor = state.get("floor", -torch.inf)

    def _top(self, ansatz: AutoregressiveAnsatz, share: Share, rows: int) -> tuple[Leaves, float]:
        """This rank's leaves among the k largest of all ranks, and the (k + 1)-th largest value."""
        for floor in (self._floor, -torch.inf):
            found = largest_leaves(ansatz, share, self.n_unique + 1, rows, floor)
            values, _ = distributed.all_gather_rows(found.values)
            if len(values) > self.n_unique:
                threshold = float(values.topk(self.n_unique + 1).values[-1])
                return found[found.values > threshold], threshold
        return found, -torch.inf


def perturb(nodes: tree.Nodes, log_conditionals: Tensor) -> tuple[Tensor, Tensor]:
    """Perturbed log probabilities of children given that their maximum is the parent's, in the stable form of
    Kool et al. 2019, appendix B.3."""
    noise = torch.stack([_gumbel(random.uniform(nodes.hashes, token)) for token in range(random.TOKENS)], 1)
    free = nodes.log_p[:, None] + log_conditionals + noise
    target = nodes.values[:, None]
    v = target - free + _log1mexp(free - free.amax(1, keepdim=True))
    values = target - v.relu() - torch.log1p(torch.exp(-v.abs()))
    return values, values > -torch.inf


def largest_leaves(ansatz: AutoregressiveAnsatz, share: Share, k: int, rows: int, floor: float) -> Leaves:
    """The ``k`` leaves of a share with the largest values among those of at least ``floor``.

    Depth first, most promising nodes first. A node's value is that of its best leaf, so the k-th largest value of all
    nodes and leaves known so far is a bound below which nothing needs to be looked at.
    """
    found = concatenate(share.leaves) if share.leaves else None
    stack, checked = tree.deepest_first(share.branches), 0
    while stack:
        known = sum(len(branch.nodes) for branch in stack) + (len(found) if found else 0)
        if known > max(k, checked * (1 + SLACK)):
            values = torch.cat([branch.nodes.values for branch in stack] + ([found.values] if found else []))
            floor = max(floor, float(values.topk(k).values[-1]))
            stack = [branch[branch.nodes.values >= floor] for branch in stack]
            found = found and found[found.values >= floor]
            checked = k
        branch, complete = tree.harvest(tree.pop(stack, ansatz, rows), ansatz.sector)
        found = complete if found is None else concatenate([found, complete])
        branch = branch[branch.nodes.values >= floor]
        if len(branch.nodes) > rows:
            stack.extend(_by_promise(branch, rows))
        elif len(branch.nodes):
            try:
                stack.append(tree.expand(ansatz, branch, perturb))
            except memory.ERRORS as error:
                rows = memory.halved(len(branch.nodes), error)
                stack.append(branch)
    assert found is not None
    found = found[found.values >= floor]
    return found[found.values.topk(min(k, len(found))).indices]


def _by_promise(branch: tree.Branch, rows: int) -> list[tree.Branch]:
    """Pieces of at most ``rows`` nodes, the largest values last; in a piece prefixes stay in order."""
    order = branch.nodes.values.argsort()
    n_pieces = -(-len(order) // rows)
    return [branch[part.sort().values] for part in order.tensor_split(n_pieces)]


def _gumbel(u: Tensor) -> Tensor:
    return -torch.log(-torch.log(u))


def _log1mexp(x: Tensor) -> Tensor:
    """log(1 − eˣ) for x ≤ 0 (Mächler 2012)."""
    return torch.where(x > -0.6931471805599453, torch.log(-torch.expm1(x)), torch.log1p(-torch.exp(x)))
