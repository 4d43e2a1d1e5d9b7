"""The decoding tree: nodes are prefixes, leaves are determinants; samplers decide which children live."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from nnqs_lightning import memory
from nnqs_lightning.ansatz.base import AutoregressiveAnsatz
from nnqs_lightning.errors import UserError
from nnqs_lightning.fock import Sector
from nnqs_lightning.sampling import prefix, random
from nnqs_lightning.sampling.leaves import Leaves

HEAP_SLACK = 2**26
"""Bytes by which memory grows in a walk before what is free of it is given back: less takes time."""


@dataclass
class Nodes:
    """Prefixes of one length."""

    depth: int
    """Number of tokens of each prefix."""
    keys: Tensor
    """int64 [M, width]: see :mod:`nnqs_lightning.sampling.prefix`."""
    values: Tensor
    """[M]: what the sampler carries down the tree: walkers (int64) or perturbed log probabilities (float64)."""
    log_p: Tensor
    """float64 [M]: log probability of the prefix."""
    hashes: Tensor
    """int64 [M]: see :mod:`nnqs_lightning.sampling.random`."""

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, rows: slice | Tensor) -> Nodes:
        return Nodes(self.depth, self.keys[rows], self.values[rows], self.log_p[rows], self.hashes[rows])

    @classmethod
    def concatenate(cls, parts: list[Nodes]) -> Nodes:
        """Nodes of one depth in one."""
        columns = ((part.keys, part.values, part.log_p, part.hashes) for part in parts)
        return cls(parts[0].depth, *(torch.cat(column) for column in zip(*columns, strict=True)))

    def extend(self, parents: Tensor, tokens: Tensor, values: Tensor, log_conditionals: Tensor) -> Nodes:
        """Node m is node ``parents[m]`` with ``tokens[m]`` appended (each argument [M])."""
        return Nodes(
            depth=self.depth + 1,
            keys=prefix.append(self.keys[parents], self.depth, tokens),
            values=values,
            log_p=self.log_p[parents] + log_conditionals,
            hashes=random.extend(self.hashes[parents], tokens),
        )


Rule = Callable[[Nodes, Tensor], tuple[Tensor, Tensor]]
"""(nodes, log conditionals float64 [M, 4]) → values of the children [M, 4] and which of them live, bool [M, 4]."""


@dataclass
class Branch:
    """Nodes whose decoding state has not been computed yet, but can be from their parents'."""

    nodes: Nodes
    parents: Tensor
    """int64 [M]: rows of ``state``."""
    state: Any
    """Decoding state of the parents; None at the root."""

    @classmethod
    def root(cls, value: Tensor, key: int, sector: Sector) -> Branch:
        """The empty prefix with its value [1] in the draw that has this key."""
        nodes = Nodes(
            depth=0,
            keys=torch.zeros((1, prefix.width(sector.n_orb)), dtype=torch.int64, device=value.device),
            values=value,
            log_p=torch.zeros(1, dtype=torch.float64, device=value.device),
            hashes=torch.tensor([key], dtype=torch.int64, device=value.device),
        )
        return cls(nodes, torch.zeros(1, dtype=torch.int64, device=value.device), None)

    def __getitem__(self, rows: slice | Tensor) -> Branch:
        return Branch(self.nodes[rows], self.parents[rows], self.state)

    def open(self, ansatz: AutoregressiveAnsatz) -> Any:
        """The decoding state of the nodes."""
        if self.nodes.depth == 0:
            return ansatz.begin()
        return ansatz.advance(self.state, self.parents, prefix.token(self.nodes.keys, self.nodes.depth - 1))

    def pieces(self, rows: int) -> list[Branch]:
        """The same nodes in order, in pieces of like size of at most ``rows``."""
        n = len(self.nodes)
        n_pieces = -(-n // rows)
        return [self[n * i // n_pieces : n * (i + 1) // n_pieces] for i in range(n_pieces)]


def walk(ansatz: AutoregressiveAnsatz, branches: list[Branch], rule: Rule, rows: int) -> Iterator[Leaves]:
    """Walk the tree below ``branches`` and give its leaves, in pieces and in no particular order.

    Depth first in pieces of at most ``rows`` nodes, so that no more than one decoding state of ``rows`` rows per depth
    is alive; breadth first where a whole level fits into one piece. Pieces are halved when memory runs out.
    """
    stack = deepest_first(branches)
    heap = memory.Heap(HEAP_SLACK)
    while stack:
        heap.tidy()
        branch, leaves = harvest(pop(stack, ansatz, rows), ansatz.sector)
        if len(leaves):
            yield leaves
        pieces = branch.pieces(rows)
        if len(pieces) == 1:
            try:
                stack.append(expand(ansatz, branch, rule))
            except memory.ERRORS as error:
                rows = memory.halved(len(branch.nodes), error)
                stack.append(branch)
        else:
            stack.extend(reversed(pieces))


def deepest_first(branches: list[Branch]) -> list[Branch]:
    """A stack from which the walk of the shallower ones meets the deeper ones on its way down."""
    return sorted(branches, key=lambda branch: -branch.nodes.depth)


def pop(stack: list[Branch], ansatz: AutoregressiveAnsatz, rows: int) -> Branch:
    """Take off the last branch, and in one with it those before it that are as deep, up to ``rows`` nodes.

    The branches of a rank's part start at many depths; decoded one by one they would take a call each per depth.
    """
    first, n_nodes = len(stack) - 1, len(stack[-1].nodes)
    while first and stack[first - 1].nodes.depth == stack[-1].nodes.depth:
        n_nodes += len(stack[first - 1].nodes)
        if n_nodes > rows:
            break
        first -= 1
    taken = stack[first:]
    state = ansatz.join([branch.state for branch in taken]) if len(taken) > 1 else None
    if state is None:
        return stack.pop()
    del stack[first:]
    starts = accumulate((len(branch.state) for branch in taken), initial=0)
    parents = torch.cat([branch.parents + start for branch, start in zip(taken, starts, strict=False)])
    return Branch(Nodes.concatenate([branch.nodes for branch in taken]), parents, state)


def expand(ansatz: AutoregressiveAnsatz, branch: Branch, rule: Rule) -> Branch:
    """The children that live, all at once; errors of :func:`children`."""
    return children(ansatz, branch.nodes, branch.open(ansatz), rule)


def children(ansatz: AutoregressiveAnsatz, nodes: Nodes, state: Any, rule: Rule) -> Branch:
    """The children that live, of nodes whose decoding state is known.

    Raises:
        UserError: the conditionals hold NaN.
    """
    log_conditionals = ansatz.log_conditionals(state)
    if bool(log_conditionals.isnan().any()):
        raise UserError(
            f"the conditionals are NaN at orbital {nodes.depth} of the decoding order: the parameters have "
            "diverged, lower the step of model.optimizer"
        )
    values, alive = rule(nodes, log_conditionals)
    parents, tokens = torch.nonzero(alive, as_tuple=True)
    grown = nodes.extend(parents, tokens, values[parents, tokens], log_conditionals[parents, tokens])
    return Branch(grown, parents, state)


def harvest(branch: Branch, sector: Sector) -> tuple[Branch, Leaves]:
    """Part the nodes that have one completion left from the others, and complete them.

    Tokens without an alternative have probability one, so nothing but the prefix changes.
    """
    nodes = branch.nodes
    left = sector.n_orb - nodes.depth
    placed_alpha, placed_beta = prefix.electrons(nodes.keys)
    alpha, beta = sector.n_alpha - placed_alpha, sector.n_beta - placed_beta
    done = ((alpha == 0) | (alpha == left)) & ((beta == 0) | (beta == left))
    rest = ((alpha > 0) + 2 * (beta > 0))[done]
    keys = nodes.keys[done] | rest[:, None] * prefix.filled(sector.n_orb, nodes.depth, nodes.keys.device)
    return branch[~done], Leaves(keys, nodes.values[done], nodes.log_p[done])


def device_of(ansatz: nn.Module) -> torch.device:
    """Where the parameters are; the CPU for an ansatz without any."""
    parameter = next(ansatz.parameters(), None)
    return torch.device("cpu") if parameter is None else parameter.device
