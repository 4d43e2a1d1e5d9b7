"""Schemes that bias attention scores by a distance."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from nnqs_lightning.errors import UserError
from nnqs_lightning.nn.positional.base import PositionalScheme, PositionContext


def index_distance(q_positions: Tensor, k_positions: Tensor) -> Tensor:
    """How far each key lies behind each query, int64 [Tq, Tk]; 0 at keys that the causal mask hides anyway."""
    return (q_positions[:, None] - k_positions[None, :]).clamp(min=0)


class DistanceBias(PositionalScheme):
    """b_h(distance), the distance being that of the places. Schemes that measure another one reuse :meth:`score`."""

    @abstractmethod
    def score(self, distance: Tensor) -> Tensor:
        """Bias at distances ≥ 0, whole or not: [Tq, Tk] → [H, Tq, Tk]."""

    def bias(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """[H, Tq, Tk]."""
        return self.score(index_distance(q_positions, k_positions)).to(q.dtype)


DistanceBiasFactory = Callable[[PositionContext], DistanceBias]
"""A class of this file, or one like it, whose first argument is the context."""


class Alibi(DistanceBias):
    """−m_h · distance with fixed slopes, geometric from 2^(−8/H) to 2^−8 (Press et al. 2021, 2108.12409, §3).

    Args:
        context: what the decoder tells.
    """

    extension = "works at any length, the penalty growing on"

    def __init__(self, context: PositionContext) -> None:
        super().__init__(context)
        self.slopes: Tensor
        self.register_buffer("slopes", alibi_slopes(context.n_heads))

    def score(self, distance: Tensor) -> Tensor:
        """−m_h · distance."""
        return -self.slopes[:, None, None] * distance


def alibi_slopes(n_heads: int) -> Tensor:
    """The paper's slopes, float64 [H]; a number of heads between powers of two takes every other slope of twice it."""
    power = 2 ** int(math.log2(n_heads))
    slopes = [2.0 ** (-8.0 * (i + 1) / power) for i in range(power)]
    between = [2.0 ** (-4.0 * (i + 1) / power) for i in range(0, 2 * (n_heads - power), 2)]
    return torch.tensor(slopes + between, dtype=torch.float64)


class T5Bias(DistanceBias):
    """Learned b_h[bucket(distance)]: exact buckets, then logarithmic ones (Raffel et al. 2020, 1910.10683, §2.1).

    Args:
        context: what the decoder tells.
        n_buckets: number of buckets; the first half holds the distances 0, 1, 2, … one by one.
        max_distance: distances from here on share the last bucket.
    """

    extension = "works at any length; far distances share a bucket"

    def __init__(self, context: PositionContext, n_buckets: int = 16, max_distance: int = 64) -> None:
        super().__init__(context)
        if n_buckets < 2 or max_distance <= n_buckets // 2:
            raise UserError(
                f"n_buckets is {n_buckets} and max_distance {max_distance}, expected n_buckets ≥ 2 and "
                "max_distance > n_buckets / 2: change model.ansatz.positional"
            )
        self.n_buckets = n_buckets
        self.max_distance = max_distance
        self.table = nn.Embedding(n_buckets, context.n_heads)
        nn.init.zeros_(self.table.weight)

    def score(self, distance: Tensor) -> Tensor:
        """The entries of the buckets."""
        return self.table(self.buckets(distance)).permute(2, 0, 1)

    def buckets(self, distance: Tensor) -> Tensor:
        """int64 bucket of each distance, rounded to whole ones in the exact half."""
        exact = self.n_buckets // 2
        octaves = torch.log(distance.clamp(min=exact) / exact) / math.log(self.max_distance / exact)
        far = exact + (octaves * (self.n_buckets - exact)).long()
        near = distance.round().long()
        return torch.where(near < exact, near, far.clamp(max=self.n_buckets - 1))


class RelativeBias(DistanceBias):
    """Learned b_h[min(distance, max_distance)], one entry per distance (clipping as in Shaw et al. 2018, 1803.02155).

    Args:
        context: what the decoder tells.
        max_distance: distances beyond share its entry; null for the longest distance of the system.
    """

    extension = "works at any length; longer distances start from the longest trained one"

    def __init__(self, context: PositionContext, max_distance: int | None = None) -> None:
        super().__init__(context)
        if max_distance is not None and max_distance < 1:
            raise UserError(
                f"max_distance is {max_distance}, expected at least 1: change model.ansatz.positional.max_distance"
            )
        self.max_distance = max_distance or max(context.n_positions - 1, 1)
        self.table = nn.Embedding(self.max_distance + 1, context.n_heads)
        nn.init.zeros_(self.table.weight)

    def score(self, distance: Tensor) -> Tensor:
        """The entry of each distance, linear in between."""
        return interpolate(self.table, distance.clamp(max=self.max_distance)).permute(2, 0, 1)

    def resize(self, name: str, trained: Tensor, places: Tensor) -> Tensor:
        """Entries of trained distances; the longest one's for those beyond."""
        return trained[torch.arange(self.max_distance + 1).clamp(max=len(trained) - 1)]


def interpolate(table: nn.Embedding, place: Tensor) -> Tensor:
    """Rows of a table at places between its indices: [...] → [..., width]."""
    lower = place.floor().long()
    share = (place - lower).unsqueeze(-1).to(table.weight.dtype)
    return torch.lerp(table(lower), table(place.ceil().long()), share)
