"""Causal multi-head attention with the three positional hooks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nnqs_lightning.nn.cache import KeyValueCache
from nnqs_lightning.nn.positional.base import PositionalScheme

VECTOR_WIDTH = 16
"""Shortest row that PyTorch's CPU softmax works on with vector instructions in float32."""


class RowSoftmax(nn.Module):
    """Softmax over the last dimension; short rows are padded with −inf, since their CPU kernel is a slow one."""

    def forward(self, scores: Tensor) -> Tensor:
        """[..., T] → the same shape."""
        width = scores.shape[-1]
        if width >= VECTOR_WIDTH or scores.dtype != torch.float32 or scores.device.type != "cpu":
            return torch.softmax(scores, dim=-1)
        padded = nn.functional.pad(scores, (0, VECTOR_WIDTH - width), value=float("-inf"))
        return torch.softmax(padded, dim=-1)[..., :width]


class CausalSelfAttention(nn.Module):
    """softmax(q kᵀ / √d_head + bias) v over all keys at or before the query (Vaswani et al. 2017, 1706.03762).

    Plain matrix products, not ``scaled_dot_product_attention``: that one has no batching rule under ``vmap``
    and takes no differentiable bias in its fast kernels.

    Args:
        d_model: width of the residual stream, a multiple of ``n_heads``.
        n_heads: number of heads H.
        layer: index of the layer, which names its keys in a cache.
    """

    def __init__(self, d_model: int, n_heads: int, layer: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.d_head = d_model // n_heads
        self.layer = layer
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)
        # A module of its own, so that a forward hook sees the weights.
        self.softmax = RowSoftmax()

    def forward(
        self, x: Tensor, positional: PositionalScheme, positions: Tensor, cache: KeyValueCache | None = None
    ) -> Tensor:
        """Attend within ``x``, or from the newest token ``x`` to all that the cache holds.

        Args:
            x: [N, T, d_model]; with a cache T = 1, or N = 1 and all that it has room for.
            positional: the scheme whose ``rotate`` and ``bias`` are applied.
            positions: int64 places of the keys: [T], or those of all cached tokens with the newest last.
            cache: receives the new keys and values.

        Returns:
            [N, T, d_model].
        """
        n, t, d_model = x.shape
        q, k, v = self.qkv(x).view(n, t, 3, self.n_heads, self.d_head).permute(2, 0, 3, 1, 4)
        q_positions = positions[-t:]
        q, k = positional.rotate(q, k, q_positions, q_positions)
        if cache is not None:
            cache.store(self.layer, k, v)
            if t == 1:
                if cache.compiled and not positional.contextual:
                    return self.out(self._attend(q, positional, positions, cache))
                k, v = cache.keys_and_values(self.layer)
        scores = (q * self.d_head**-0.5) @ k.transpose(-1, -2)
        mask = _causal_mask(q_positions, positions, scores.dtype)
        bias = positional.bias(q, k, q_positions, positions)
        mixed = self.softmax(scores + (mask if bias is None else mask + bias)) @ v
        return self.out(mixed.transpose(1, 2).reshape(n, t, d_model))

    def _attend(self, q: Tensor, positional: PositionalScheme, positions: Tensor, cache: KeyValueCache) -> Tensor:
        """The newest token's query over the rows of the cache as they lie: [N, H, 1, d_head] → [N, 1, d_model]."""
        scores = cache.scores(self.layer, q * self.d_head**-0.5)
        # No keys at all, so that a scheme that reads them without being contextual fails instead of misreading.
        bias = positional.bias(q, q[:, :, :0], positions[-1:], positions)
        if bias is not None:
            scores += bias
        return cache.mix(self.layer, self.softmax(scores))


def _causal_mask(q_positions: Tensor, k_positions: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where a query may look, −inf at later keys: [Tq, Tk]."""
    later = k_positions[None, :] > q_positions[:, None]
    return torch.zeros(later.shape, dtype=dtype, device=later.device).masked_fill(later, float("-inf"))
