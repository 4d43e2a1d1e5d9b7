"""Keys and values of the prefixes of an incremental decoding."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Kernel = Callable[..., None]

COMPILED = (torch.float32, torch.float64)
"""Types for which attention on the CPU is compiled."""


class KeyValuePool:
    """Rows of keys and values, one per token of the tree and layer: [n_layers, capacity, 2 d_model].

    Blocks of rows are handed out and taken back; the pool grows when none of its gaps is large enough.
    """

    def __init__(self, n_layers: int, d_model: int, like: Tensor) -> None:
        self.rows = like.new_empty((n_layers, 0, 2 * d_model))
        self._taken: list[tuple[int, int]] = []

    def take(self, n_rows: int) -> Block:
        """A block of ``n_rows`` rows."""
        start, index = 0, 0
        while index < len(self._taken) and self._taken[index][0] - start < n_rows:
            start, index = self._taken[index][1], index + 1
        if start + n_rows > self.rows.shape[1]:
            self._grow(start + n_rows)
        if n_rows:
            self._taken.insert(index, (start, start + n_rows))
        return Block(self, start, start + n_rows)

    def give_back(self, first: int, last: int) -> None:
        """Free the rows of a block."""
        self._taken.remove((first, last))

    def _grow(self, needed: int) -> None:
        n_layers, capacity, width = self.rows.shape
        larger = self.rows.new_empty((n_layers, max(needed, 2 * capacity), width))
        used = self._taken[-1][1] if self._taken else 0
        larger[:, :used] = self.rows[:, :used]
        self.rows = larger


class Block:
    """Rows ``first`` … ``last`` − 1 of a pool, given back when nobody refers to the block any more."""

    def __init__(self, pool: KeyValuePool, first: int, last: int) -> None:
        self.pool = pool
        self.first = first
        self.last = last

    def __del__(self) -> None:
        if self.last > self.first:
            self.pool.give_back(self.first, self.last)


class KeyValueCache:
    """Which rows of a pool each prefix attends to: those of its own tokens, one block for each depth.

    Prefixes with common ancestors share their rows, so a step stores one row per prefix and copies none. A cache is
    never changed after the decoding step that filled it: its rows may be branched again and again.
    """

    def __init__(self, pool: KeyValuePool, blocks: list[Block], ancestors: Tensor, n_heads: int) -> None:
        self.pool = pool
        self.ancestors = ancestors
        """int32 [rows, T]: row of the pool for each token of each prefix."""
        self.n_heads = n_heads
        self._blocks = blocks

    @classmethod
    def empty(cls, n_layers: int, n_heads: int, d_head: int, like: Tensor) -> KeyValueCache:
        """One row without any tokens, with the dtype and the device of ``like``."""
        pool = KeyValuePool(n_layers, n_heads * d_head, like)
        return cls(pool, [], torch.empty((1, 0), dtype=torch.int32, device=like.device), n_heads)

    @classmethod
    def join(cls, caches: list[KeyValueCache]) -> KeyValueCache:
        """The rows of caches with equally many tokens and one pool, one after the other; nothing is copied in it."""
        blocks = [block for cache in caches for block in cache._blocks]
        ancestors = torch.cat([cache.ancestors for cache in caches])
        return cls(caches[0].pool, list(dict.fromkeys(blocks)), ancestors, caches[0].n_heads)

    def line(self, length: int) -> KeyValueCache:
        """One row with room for ``length`` tokens, in the pool of this cache."""
        block, own = self._take(length)
        return KeyValueCache(self.pool, [block], own[None], self.n_heads)

    def first(self, length: int) -> KeyValueCache:
        """The first ``length`` tokens of each row."""
        return KeyValueCache(self.pool, self._blocks, self.ancestors[:, :length], self.n_heads)

    def __len__(self) -> int:
        """Number of tokens per row."""
        return self.ancestors.shape[1]

    def branch(self, parents: Tensor) -> KeyValueCache:
        """A cache whose row m continues row ``parents[m]``, with room for one more token."""
        block, own = self._take(len(parents))
        ancestors = torch.cat([self.ancestors[parents], own[:, None]], dim=1)
        return KeyValueCache(self.pool, [*self._blocks, block], ancestors, self.n_heads)

    def _take(self, n_rows: int) -> tuple[Block, Tensor]:
        """A block of the pool, and its rows, int32 [n_rows]."""
        block = self.pool.take(n_rows)
        return block, torch.arange(block.first, block.last, dtype=torch.int32, device=self.ancestors.device)

    def store(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Fill the room of one layer with the newest keys and values, [rows, H, T, d_head]; T = 1 but in a line."""
        rows = self.pool.rows[layer, self._blocks[-1].first : self._blocks[-1].last]
        d_model = rows.shape[1] // 2
        rows[:, :d_model] = k.transpose(1, 2).reshape(-1, d_model)
        rows[:, d_model:] = v.transpose(1, 2).reshape(-1, d_model)

    @property
    def compiled(self) -> bool:
        """Whether :meth:`scores` and :meth:`mix` work here."""
        return self.pool.rows.device.type == "cpu" and self.pool.rows.dtype in COMPILED

    def keys_and_values(self, layer: int) -> tuple[Tensor, Tensor]:
        """Copies of all keys and values of one layer, each [rows, H, T, d_head]."""
        n_rows, length = self.ancestors.shape
        rows = self.pool.rows[layer].index_select(0, self.ancestors.flatten())
        k, v = rows.view(n_rows, length, 2, self.n_heads, rows.shape[1] // 2 // self.n_heads).permute(2, 0, 3, 1, 4)
        return k, v

    def scores(self, layer: int, q: Tensor) -> Tensor:
        """q · k for all cached keys: queries [rows, H, 1, d_head] → [rows, H, 1, T]."""
        n_rows, n_heads, _, d_head = q.shape
        pool = self.pool.rows[layer]
        out = pool.new_empty((n_rows, n_heads, len(self)))
        kernel, _ = self._kernels(d_head)
        queries = q.reshape(n_rows, n_heads * d_head).to(pool.dtype)  # autocast makes them bfloat16
        kernel(queries.numpy(), pool.numpy(), self.ancestors.numpy(), out.numpy())
        return out.unsqueeze(2)

    def mix(self, layer: int, weights: Tensor) -> Tensor:
        """Values averaged with attention weights [rows, H, 1, T] → [rows, 1, d_model]."""
        pool = self.pool.rows[layer]
        out = pool.new_empty((len(weights), pool.shape[1] // 2))
        _, kernel = self._kernels(out.shape[1] // self.n_heads)
        kernel(
            weights.squeeze(2).contiguous().to(pool.dtype).numpy(), pool.numpy(), self.ancestors.numpy(), out.numpy()
        )
        return out.unsqueeze(1)

    def _kernels(self, d_head: int) -> tuple[Kernel, Kernel]:
        # Compiled on first use: importing Numba would slow down the start of every command.
        from nnqs_lightning.nn.ancestry import attention_kernels

        return attention_kernels(
            self.n_heads, d_head, "float32" if self.pool.rows.dtype == torch.float32 else "float64"
        )
