"""Who walks where: each rank owns an interval of the lexicographic order of determinants.

The cuts between intervals share out the work of the last draw equally. A rank decodes the nodes below which all
determinants are its own and, on the way to them, those that hold one of its two cuts: at most two a depth, whatever
the number of ranks, and nothing is communicated. The nodes that hold a cut are the prefixes of its key, so one pass
over the key decodes them all, with nothing else, so that they round alike on all ranks that need them and no walker is
lost or doubled between them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from nnqs_lightning.ansatz.base import AutoregressiveAnsatz
from nnqs_lightning.sampling import prefix
from nnqs_lightning.sampling.leaves import Leaves
from nnqs_lightning.sampling.tree import Branch, Nodes, Rule, children, expand, harvest

FINENESS = 1 / 16
"""A guessed cut is as near to its place as this fraction of a rank's part."""

Estimate = Callable[[Nodes], Tensor]
"""Expected work below nodes, in any unit: float64 [M]."""


@dataclass
class Share:
    """A part of the tree: branches to walk and leaves that are known already."""

    branches: list[Branch] = field(default_factory=list)
    leaves: list[Leaves] = field(default_factory=list)


def own_share(
    ansatz: AutoregressiveAnsatz, root: Branch, rule: Rule, lower: Tensor | None, upper: Tensor | None
) -> Share:
    """The determinants from the key ``lower`` [width] on and before ``upper``; None is no bound."""
    begin, n_orb = ansatz.begin(), ansatz.sector.n_orb
    cuts = [cut for cut in (lower, upper) if cut is not None]
    paths = [ansatz.along(begin, prefix.unpack(cut[None], n_orb)[0].long()) for cut in cuts]
    share, queue = Share(), [root]
    while queue:
        branch, leaves = harvest(queue.pop(), ansatz.sector)
        share.leaves.append(leaves[_behind(leaves.keys, lower) & _before(leaves.keys, upper)])
        nodes = branch.nodes
        first, last = nodes.keys, nodes.keys | 3 * prefix.filled(n_orb, nodes.depth, nodes.keys.device)
        inside = _behind(first, lower) & _before(last, upper)
        if bool(inside.any()):
            share.branches.append(branch[inside])
        waiting = ~inside
        for cut, states in zip(cuts, paths, strict=True):
            holds = waiting & _before(first, cut) & _behind(last, cut)
            waiting &= ~holds
            queue += [children(ansatz, nodes[row], states[nodes.depth], rule) for row in torch.nonzero(holds)]
    return share


def guessed_cut(
    ansatz: AutoregressiveAnsatz, root: Branch, rule: Rule, estimate: Estimate, part: int, n_parts: int
) -> Tensor:
    """First key [width] of the ``part``-th of parts of like work where nothing is known of the tree.

    The children of a node share its work as ``estimate`` has it; only the nodes that hold the cut are decoded.
    """
    branch, size, wanted = root, 1.0, part / n_parts
    while size > FINENESS / n_parts and len(harvest(branch, ansatz.sector)[0].nodes):
        below = expand(ansatz, branch, rule)
        work = estimate(below.nodes).cpu()
        ends = size * work.cumsum(0) / work.sum()
        child = min(int(torch.searchsorted(ends, wanted, right=True)), len(ends) - 1)
        begin = float(ends[child - 1]) if child else 0.0
        branch, size, wanted = below[child : child + 1], float(ends[child]) - begin, wanted - begin
    return branch.nodes.keys[0]


def _behind(keys: Tensor, bound: Tensor | None) -> Tensor:
    return torch.ones_like(keys[:, 0], dtype=torch.bool) if bound is None else ~prefix.before(keys, bound)


def _before(keys: Tensor, bound: Tensor | None) -> Tensor:
    return torch.ones_like(keys[:, 0], dtype=torch.bool) if bound is None else prefix.before(keys, bound)
