"""How many determinants grow from a node: what the last draw says about the next."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nnqs_lightning import distributed
from nnqs_lightning.sampling.tree import Nodes

MAX_KEPT = 2**19
"""Largest number of leaves that is remembered of a draw."""


class Density:
    """An evenly spaced selection of the leaves of a draw, the same on all ranks.

    Args:
        tokens: the selection in lexicographic order, uint8 [K, n_orb].
        spacing: number of leaves that each stands for.
    """

    def __init__(self, tokens: Tensor, spacing: int) -> None:
        self.tokens = tokens
        self.spacing = spacing
        self._keys = _keys(tokens)

    @classmethod
    def measure(cls, leaves: Nodes) -> Density:
        """Keep every ``spacing``-th of this rank's leaves, which come in lexicographic order; collective."""
        total = int(distributed.all_reduce_sum(torch.tensor(len(leaves), device=leaves.tokens.device)))
        spacing = max(-(-total // MAX_KEPT), 1)
        kept, _ = distributed.all_gather_rows(leaves[spacing // 2 :: spacing].tokens)
        kept = kept.cpu()
        order = torch.from_numpy(np.argsort(_keys(kept), kind="stable"))
        return cls(kept[order], spacing)

    def count(self, nodes: Nodes) -> Tensor:
        """Number of leaves that the draw had below each node, float64 [M] on the CPU; 0 below the resolution."""
        prefixes = nodes.tokens.cpu()
        first = np.searchsorted(self._keys, _keys(prefixes))
        last = np.searchsorted(self._keys, _keys(torch.cat([prefixes, prefixes.new_full((len(prefixes), 1), 4)], 1)))
        return torch.from_numpy(last - first).double() * self.spacing


def expected_leaves(density: Density | None, nodes: Nodes, walkers: Tensor) -> Tensor:
    """Leaves expected below each node, float64 [M] on the CPU: as many as before, or a guess for what is new.

    Args:
        density: the last draw; None before the first.
        nodes: prefixes.
        walkers: float64 [M], number of walkers on each.
    """
    guess = walkers.cpu().clamp(min=1).sqrt()
    if density is None:
        return guess
    seen = density.count(nodes)
    return torch.where(seen > 0, seen, guess)


def density_state(density: Density | None) -> dict[str, Any]:
    """What a checkpoint keeps of a density."""
    return {} if density is None else {"density_tokens": density.tokens, "density_spacing": density.spacing}


def density_from(state: dict[str, Any]) -> Density | None:
    """Inverse of :func:`density_state`."""
    return Density(state["density_tokens"], state["density_spacing"]) if "density_tokens" in state else None


def _keys(tokens: Tensor) -> NDArray[np.bytes_]:
    """Byte strings in the same lexicographic order; a prefix comes before all that it begins."""
    n, length = tokens.shape
    # NumPy ends a string at its last byte that is not zero: no token may be one.
    return (tokens + 1).contiguous().numpy().view(f"S{length}").reshape(n) if length else np.full(n, b"", "S1")
