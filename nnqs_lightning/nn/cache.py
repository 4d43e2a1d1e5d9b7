"""Keys and values of the prefixes of an incremental decoding."""

from __future__ import annotations

import torch
from torch import Tensor


class KeyValueCache:
    """Per layer, the rotated keys and the values of every prefix, [rows, H, T, d_head].

    The decoder uses :meth:`branch` and :meth:`append` only. A cache is never changed after the decoding step that
    filled it, so the rows of one cache may be branched again and again.
    """

    def __init__(self, keys: list[Tensor], values: list[Tensor], length: int) -> None:
        self._keys = keys
        self._values = values
        self._length = length

    @classmethod
    def empty(cls, n_layers: int, n_heads: int, d_head: int, like: Tensor) -> KeyValueCache:
        """One row without any tokens, with the dtype and the device of ``like``."""
        keys = [like.new_empty((1, n_heads, 0, d_head)) for _ in range(n_layers)]
        values = [like.new_empty((1, n_heads, 0, d_head)) for _ in range(n_layers)]
        return cls(keys, values, 0)

    def __len__(self) -> int:
        """Number of tokens per row."""
        return self._length

    def branch(self, parents: Tensor) -> KeyValueCache:
        """A cache whose row m copies row ``parents[m]``, with room for one more token."""
        keys = [_gather_with_room(rows, parents) for rows in self._keys]
        values = [_gather_with_room(rows, parents) for rows in self._values]
        return KeyValueCache(keys, values, self._length + 1)

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Fill the room of one layer with [rows, H, 1, d_head]; gives back all of its keys and values."""
        self._keys[layer][:, :, -1:] = k
        self._values[layer][:, :, -1:] = v
        return self._keys[layer], self._values[layer]


def _gather_with_room(rows: Tensor, parents: Tensor) -> Tensor:
    _, n_heads, length, d_head = rows.shape
    gathered = rows.new_empty((len(parents), n_heads, length + 1, d_head))
    gathered[:, :, :length] = torch.index_select(rows, 0, parents)
    return gathered
