"""Who walks where: the shared top of the tree is grown identically by all ranks, then dealt out in stages.

At each stage a group of ranks opens the nodes from which more than a fraction of one part of its work is expected to
grow, and deals all nodes out to its parts, heaviest first, each to the least loaded part. Every rank of the group does
the same arithmetic on the same numbers, so nothing is communicated. A stage has at most :data:`FAN_OUT` parts: the
number of nodes that a rank opens for others grows with the logarithm of the number of ranks.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from nnqs_lightning.ansatz.base import AutoregressiveAnsatz
from nnqs_lightning.sampling.tree import Branch, Nodes, Rule, concatenate, deepest_first, expand, harvest, pop

FAN_OUT = 8
"""Largest number of parts of a stage."""
GRAIN = 1 / 16
"""A node expected to be a larger fraction of a part than this is opened before dealing."""

Estimate = Callable[[Nodes], Tensor]
"""Expected number of leaves below nodes: float64 [M] on the CPU."""


@dataclass
class Share:
    """A part of the tree: branches to walk and leaves that are known already."""

    branches: list[Branch] = field(default_factory=list)
    leaves: list[Nodes] = field(default_factory=list)


def own_share(
    ansatz: AutoregressiveAnsatz, root: Branch, rule: Rule, estimate: Estimate, rank: int, world: int
) -> Share:
    """What ``rank`` of ``world`` walks; the shares of all ranks make up the tree below ``root``."""
    share = Share([root])
    first, size = 0, world
    while size > 1:
        bounds = parts_of(size)
        part = next(i for i in range(len(bounds) - 1) if rank - first < bounds[i + 1])
        share = deal(ansatz, share, rule, estimate, bounds)[part]
        first, size = first + bounds[part], bounds[part + 1] - bounds[part]
    return share


def parts_of(size: int) -> list[int]:
    """Bounds of the parts into which a stage splits ``size`` ranks."""
    n_parts = min(size, FAN_OUT)
    return [size * i // n_parts for i in range(n_parts + 1)]


def deal(ansatz: AutoregressiveAnsatz, share: Share, rule: Rule, estimate: Estimate, bounds: list[int]) -> list[Share]:
    """Split a share into parts, each as large as the ranks between its ``bounds`` are many."""
    capacities = [stop - start for start, stop in pairwise(bounds)]
    share, expected = _opened(ansatz, share, rule, estimate, GRAIN / len(capacities))
    owners = _least_loaded(expected + [torch.ones(len(nodes)) for nodes in share.leaves], capacities)
    parts = [Share() for _ in capacities]
    for i, part in enumerate(parts):
        branch_owners, leaf_owners = owners[: len(expected)], owners[len(expected) :]
        for branch, owner in zip(share.branches, branch_owners, strict=True):
            if bool((owner == i).any()):
                part.branches.append(branch[owner.to(branch.parents.device) == i])
        for nodes, owner in zip(share.leaves, leaf_owners, strict=True):
            part.leaves.append(nodes[owner.to(nodes.hashes.device) == i])
    return parts


def _opened(
    ansatz: AutoregressiveAnsatz, share: Share, rule: Rule, estimate: Estimate, fraction: float
) -> tuple[Share, list[Tensor]]:
    """The same share with nodes above ``fraction`` of it opened, and what is expected below each branch."""
    closed, expected = Share(leaves=list(share.leaves)), []
    total = sum(float(estimate(branch.nodes).sum()) for branch in share.branches)
    queue = deepest_first(share.branches)
    while queue:
        branch, complete = harvest(pop(queue, ansatz, sys.maxsize), ansatz.sector)
        closed.leaves.append(complete)
        loads = estimate(branch.nodes)
        heavy = loads > max(fraction * total, 1.0)
        if bool(heavy.any()):
            heavy = heavy.to(branch.parents.device)
            queue.append(expand(ansatz, branch[heavy], rule))
            branch, loads = branch[~heavy], loads[~heavy.cpu()]
        closed.branches.append(branch)
        expected.append(loads)
    closed.leaves = [concatenate(closed.leaves)]
    return closed, expected


def _least_loaded(loads: list[Tensor], capacities: list[int]) -> list[Tensor]:
    """Deal items out, heaviest first, each to the part least loaded for its capacity; owners shaped like ``loads``."""
    flat = torch.cat(loads).double()
    owners = torch.empty(len(flat), dtype=torch.int64)
    heap = [(0.0, part) for part in range(len(capacities))]
    for item in torch.sort(flat, descending=True, stable=True).indices.tolist():
        load, part = heapq.heappop(heap)
        owners[item] = part
        heapq.heappush(heap, (load + float(flat[item]) / capacities[part], part))
    return list(owners.split([len(part) for part in loads]))
