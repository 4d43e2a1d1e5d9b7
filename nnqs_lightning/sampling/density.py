"""Where the work of a draw lay: what the last draw says about the next."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nnqs_lightning import distributed
from nnqs_lightning.sampling import prefix
from nnqs_lightning.sampling.leaves import Leaves

MAX_KEPT = 2**19
"""Largest number of keys that is remembered of a draw, about."""


class Density:
    """Keys of leaves between which equally many nodes were decoded, the same on all ranks.

    Args:
        keys: in lexicographic order, int64 [K, width].
        n_orb: tokens of a key.
    """

    def __init__(self, keys: Tensor, n_orb: int) -> None:
        self.keys = keys
        self.n_orb = n_orb

    @classmethod
    def measure(cls, leaves: Leaves, n_orb: int) -> Density:
        """Mark the work of this rank's leaves, which come in lexicographic order; collective."""
        done = nodes_opened(leaves.keys, n_orb).cumsum(0)
        total = int(distributed.all_reduce_sum(done[-1:].sum()))
        marks = done // max(-(-total // MAX_KEPT), 1)
        kept = leaves.keys.repeat_interleave(marks.diff(prepend=marks.new_zeros(1)), dim=0)
        everywhere = distributed.all_gather_rows(kept)[0].cpu()
        return cls(everywhere[prefix.in_order(everywhere)], n_orb)

    def cuts(self, n_parts: int) -> Tensor:
        """First keys of all parts but the first, int64 [n_parts − 1, width], as short as parts of like work allow."""
        if not len(self.keys):
            return self.keys.new_zeros((n_parts - 1, self.keys.shape[1]))
        first = torch.arange(1, n_parts) * len(self.keys) // n_parts
        here, previous = self.keys[first], self.keys[(first - 1).clamp(min=0)]
        tokens = prefix.unpack(here, self.n_orb)
        # Behind the first token that tells the parts apart: a cut at zeros is one between nodes, not inside of one.
        tokens[torch.arange(self.n_orb) > shared_tokens(previous, here, self.n_orb)[:, None]] = 0
        return prefix.pack(tokens)


def nodes_opened(keys: Tensor, n_orb: int) -> Tensor:
    """Nodes that a walk through sorted leaves decodes for the first time on its way to each, int64 [N].

    Those of the first leaf are not counted: a rank shares them with its neighbour. Tokens at the end that equal the
    last one have no alternative and are not decoded.
    """
    shared = torch.cat([keys.new_full((len(keys[:1]),), n_orb), shared_tokens(keys[:-1], keys[1:], n_orb)])
    forced = torch.zeros_like(shared)
    same = torch.ones_like(shared, dtype=torch.bool)
    last = prefix.token(keys, n_orb - 1)
    for depth in reversed(range(n_orb)):
        same &= prefix.token(keys, depth) == last
        forced += same
    return (n_orb - forced - 1 - shared).clamp(min=0)


def shared_tokens(first: Tensor, second: Tensor, n_orb: int) -> Tensor:
    """Length of the common prefix of pairs of keys, each int64 [N, width]: int64 [N]."""
    length = first.new_zeros(len(first))
    same = torch.ones_like(length, dtype=torch.bool)
    for depth in range(n_orb):
        same &= prefix.token(first, depth) == prefix.token(second, depth)
        length += same
    return length


def density_state(density: Density | None) -> dict[str, Any]:
    """What a checkpoint keeps of a density."""
    return {} if density is None else {"density_keys": density.keys, "density_n_orb": density.n_orb}


def density_from(state: dict[str, Any]) -> Density | None:
    """Inverse of :func:`density_state`."""
    return Density(state["density_keys"], state["density_n_orb"]) if "density_keys" in state else None
