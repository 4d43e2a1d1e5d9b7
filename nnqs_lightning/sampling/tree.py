"""The decoding tree: nodes are prefixes, leaves are determinants; samplers decide which children live."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from nnqs_lightning import distributed, memory
from nnqs_lightning.ansatz.base import AutoregressiveAnsatz
from nnqs_lightning.errors import UserError
from nnqs_lightning.fock import SampleBatch, Sector, n_words
from nnqs_lightning.sampling import random

TOKENS_PER_WORD = 31
"""Two bits each: what an int64 holds beside its sign."""


@dataclass
class Nodes:
    """Prefixes of one length."""

    tokens: Tensor
    """uint8 [M, depth]"""
    values: Tensor
    """[M]: what the sampler carries down the tree: walkers (int64) or perturbed log probabilities (float64)."""
    log_p: Tensor
    """float64 [M]: log probability of the prefix."""
    hashes: Tensor
    """int64 [M]: see :mod:`nnqs_lightning.sampling.random`."""

    @property
    def depth(self) -> int:
        """Number of tokens of each prefix."""
        return self.tokens.shape[1]

    def __len__(self) -> int:
        return self.tokens.shape[0]

    def __getitem__(self, rows: slice | Tensor) -> Nodes:
        return Nodes(self.tokens[rows], self.values[rows], self.log_p[rows], self.hashes[rows])

    def extend(self, parents: Tensor, tokens: Tensor, values: Tensor, log_conditionals: Tensor) -> Nodes:
        """Node m is node ``parents[m]`` with ``tokens[m]`` appended (each argument [M])."""
        return Nodes(
            tokens=torch.cat([self.tokens[parents], tokens.to(torch.uint8).unsqueeze(1)], dim=1),
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
    def root(cls, value: Tensor, key: int) -> Branch:
        """The empty prefix with its value [1] in the draw that has this key."""
        nodes = Nodes(
            tokens=torch.zeros((1, 0), dtype=torch.uint8, device=value.device),
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
        return ansatz.advance(self.state, self.parents, self.nodes.tokens[:, -1].long())

    def pieces(self, rows: int) -> list[Branch]:
        """The same nodes in order, in pieces of like size of at most ``rows``."""
        n = len(self.nodes)
        n_pieces = -(-n // rows)
        return [self[n * i // n_pieces : n * (i + 1) // n_pieces] for i in range(n_pieces)]


def pop(stack: list[Branch], ansatz: AutoregressiveAnsatz, rows: int) -> Branch:
    """Take off the last branch, and in one with it those before it that are as deep, up to ``rows`` nodes.

    Branches that ranks have been dealt start at many depths; decoded one by one they would take a call each per depth.
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
    return Branch(concatenate([branch.nodes for branch in taken]), parents, state)


def deepest_first(branches: list[Branch]) -> list[Branch]:
    """A stack from which the walk of the shallower ones meets the deeper ones on its way down."""
    return sorted(branches, key=lambda branch: -branch.nodes.depth)


def leaves(ansatz: AutoregressiveAnsatz, branches: list[Branch], rule: Rule, rows: int) -> Iterator[Nodes]:
    """Walk the tree below ``branches`` and give its leaves, in pieces and in no particular order.

    Depth first in pieces of at most ``rows`` nodes, so that no more than one decoding state of ``rows`` rows per depth
    is alive; breadth first where a whole level fits into one piece. Pieces are halved when memory runs out.
    """
    stack = deepest_first(branches)
    while stack:
        branch, complete_nodes = harvest(pop(stack, ansatz, rows), ansatz.sector)
        if len(complete_nodes):
            yield complete_nodes
        pieces = branch.pieces(rows)
        if len(pieces) == 1:
            try:
                stack.append(expand(ansatz, branch, rule))
            except memory.ERRORS as error:
                rows = memory.halved(len(branch.nodes), error)
                stack.append(branch)
        else:
            stack.extend(reversed(pieces))


def expand(ansatz: AutoregressiveAnsatz, branch: Branch, rule: Rule) -> Branch:
    """The children that live, all at once.

    Raises:
        UserError: the conditionals hold NaN.
    """
    state = branch.open(ansatz)
    log_conditionals = ansatz.log_conditionals(state)
    if bool(log_conditionals.isnan().any()):
        raise UserError(
            f"the conditionals are NaN at orbital {branch.nodes.depth} of the decoding order: the parameters have "
            "diverged, lower the step of model.optimizer"
        )
    values, alive = rule(branch.nodes, log_conditionals)
    parents, tokens = torch.nonzero(alive, as_tuple=True)
    nodes = branch.nodes.extend(parents, tokens, values[parents, tokens], log_conditionals[parents, tokens])
    return Branch(nodes, parents, state)


def harvest(branch: Branch, sector: Sector) -> tuple[Branch, Nodes]:
    """Part the nodes that have one completion left from the others, and complete them.

    Tokens without an alternative have probability one, so nothing but the prefix changes.
    """
    nodes = branch.nodes
    left = sector.n_orb - nodes.depth
    alpha, beta = open_electrons(nodes, sector)
    done = ((alpha == 0) | (alpha == left)) & ((beta == 0) | (beta == left))
    token = ((alpha > 0) + 2 * (beta > 0)).to(torch.uint8)[done]
    complete = nodes[done]
    complete.tokens = torch.cat([complete.tokens, token.unsqueeze(1).expand(-1, left)], dim=1)
    return branch[~done], complete


def open_electrons(nodes: Nodes, sector: Sector) -> tuple[Tensor, Tensor]:
    """Numbers of α and β electrons that each prefix has yet to place, int64 [M]."""
    alpha = (nodes.tokens & 1).sum(1, dtype=torch.int64)
    beta = (nodes.tokens >> 1).sum(1, dtype=torch.int64)
    return sector.n_alpha - alpha, sector.n_beta - beta


def concatenate(parts: list[Nodes]) -> Nodes:
    """Nodes of one depth in one."""
    return Nodes(
        torch.cat([part.tokens for part in parts]),
        torch.cat([part.values for part in parts]),
        torch.cat([part.log_p for part in parts]),
        torch.cat([part.hashes for part in parts]),
    )


def collect(parts: Iterable[Nodes]) -> Nodes:
    """:func:`concatenate` for many small parts: copied into a few large blocks at once, for small tensors that live on
    among large ones that come and go would leave the heap full of holes."""
    blocks: list[Nodes] = []
    length = 0
    for part in parts:
        needed = length + len(part)
        if not blocks:
            blocks = [_room(part, max(needed, 2**14))]
        elif needed > len(blocks[0]):
            larger = _room(part, 2 * needed)
            _fill(larger, 0, blocks[0][:length])
            blocks = [larger]
        _fill(blocks[0], length, part)
        length = needed
    return blocks[0][:length]


def _room(like: Nodes, rows: int) -> Nodes:
    return Nodes(*(x.new_empty((rows, *x.shape[1:])) for x in (like.tokens, like.values, like.log_p, like.hashes)))


def _fill(block: Nodes, start: int, part: Nodes) -> None:
    rows = slice(start, start + len(part))
    block.tokens[rows], block.values[rows] = part.tokens, part.values
    block.log_p[rows], block.hashes[rows] = part.log_p, part.hashes


def level(nodes: Nodes) -> Nodes:
    """As many nodes on each rank as on the others; collective."""
    return Nodes(*distributed.level_rows([nodes.tokens, nodes.values, nodes.log_p, nodes.hashes]))


def in_order(nodes: Nodes) -> Nodes:
    """The same nodes in lexicographic order of tokens: an order that no traversal changes.

    Called outside inference mode it gives ordinary tensors, which autograd may save.
    """
    order = torch.arange(len(nodes), device=nodes.log_p.device)
    for start in reversed(range(0, nodes.depth, TOKENS_PER_WORD)):
        key = torch.zeros_like(nodes.hashes)
        for token in nodes.tokens[:, start : start + TOKENS_PER_WORD].unbind(1):
            key = (key << 2) + token
        order = order[torch.sort(key[order], stable=True).indices]
    return nodes[order]


def to_batch(ansatz: AutoregressiveAnsatz, nodes: Nodes, weights: Tensor, rows: int) -> SampleBatch:
    """The sample that leaves make; determinants and phases are evaluated ``rows`` at a time."""
    words = n_words(ansatz.sector.n_orb)
    determinants = torch.empty((len(nodes), 2, words), dtype=torch.int64, device=nodes.tokens.device)
    phases = torch.empty_like(nodes.log_p)
    with torch.no_grad():
        for part in torch.arange(len(nodes), device=nodes.tokens.device).split(rows):
            determinants[part] = ansatz.to_determinants(nodes.tokens[part].long())
            phases[part] = ansatz.phase(determinants[part])
    return SampleBatch(determinants, torch.complex(0.5 * nodes.log_p, phases), weights)


def device_of(ansatz: nn.Module) -> torch.device:
    """Where the parameters are; the CPU for an ansatz without any."""
    parameter = next(ansatz.parameters(), None)
    return torch.device("cpu") if parameter is None else parameter.device
