"""Attention of one query a row to keys and values that rows share with their siblings, compiled.

Row m attends to the T rows ``ancestors[m]`` of a pool. Nothing is copied, and a prefix shared by siblings, which stand
side by side, is read from the processor's cache.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numba import njit

Kernel = Callable[..., None]

# Sums may be reordered, which vectorises them; NaN and infinities stay what they are.
_REORDER = {"reassoc", "contract", "nsz"}


@cache
def attention_kernels(n_heads: int, d_head: int, dtype: Any) -> tuple[Kernel, Kernel]:
    """``scores(queries, pool, ancestors, out)`` and ``mix(weights, pool, ancestors, out)`` for one shape of heads.

    With queries [M, H d_head], pool [S, 2 H d_head] (keys beside values) and ancestors [M, T], the first fills
    out[m, h, t] = q_mh · k_th, the second fills out[m, h d_head + j] = Σ_t weights[m, h, t] v_thj. The sizes are
    compiled in: loops of known length are three times as fast.
    """
    zero = np.dtype(dtype).type(0)
    width = n_heads * d_head

    @njit(cache=True, fastmath=_REORDER)
    def scores(queries, pool, ancestors, out):  # type: ignore[no-untyped-def]
        for m in range(len(queries)):
            for t in range(ancestors.shape[1]):
                row = ancestors[m, t]
                for h in range(n_heads):
                    total = zero
                    for j in range(h * d_head, (h + 1) * d_head):
                        total += queries[m, j] * pool[row, j]
                    out[m, h, t] = total

    @njit(cache=True, fastmath=_REORDER)
    def mix(weights, pool, ancestors, out):  # type: ignore[no-untyped-def]
        for m in range(len(out)):
            for h in range(n_heads):
                total = np.zeros(d_head, out.dtype)
                for t in range(ancestors.shape[1]):
                    row, weight = ancestors[m, t], weights[m, h, t]
                    for j in range(d_head):
                        total[j] += weight * pool[row, width + h * d_head + j]
                for j in range(d_head):
                    out[m, h * d_head + j] = total[j]

    return scores, mix
