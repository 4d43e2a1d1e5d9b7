"""A hash table from packed determinants to their position in a set. Importing it imports numba."""

# Kernels take what numba infers.
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nnqs_lightning.fock.compiled import jit, map_rows

Words = NDArray[np.uint64]

AHEAD = 64
"""Queries whose slots are read before the first of them is compared."""


class DeterminantTable:
    """A growing set of distinct determinants, or of strings of one spin, numbered in order of arrival.

    Open addressing with linear probing; at least half of the slots stay empty. It lives in host memory.
    """

    def __init__(self, rows: Tensor) -> None:
        """Start with ``rows``, int64 [N, 2, W] (or [N, W]); of equal ones the first counts."""
        self.shape = rows.shape[1:]
        self.size = 0
        self.words: Words = np.empty((0, self.shape.numel()), dtype=np.uint64)
        """[≥ size, words of a row]: the rows, then free space."""
        self.slots = np.full(16, -1, dtype=np.int64)
        self.insert(rows)

    def __len__(self) -> int:
        return self.size

    def insert(self, rows: Tensor) -> Tensor:
        """Add what is new; the position of every row, int64 [N]."""
        words = as_words(rows).reshape(len(rows), self.shape.numel())
        self._reserve(self.size + len(words))
        positions = np.empty(len(words), dtype=np.int64)
        self.size = insert_all(words, self.words, self.size, self.slots, positions)
        return torch.from_numpy(positions).to(rows.device)

    def find(self, rows: Tensor) -> Tensor:
        """Position of each row, −1 where it is absent, int64 [N]."""
        words = as_words(rows).reshape(len(rows), self.shape.numel())
        positions = np.empty(len(words), dtype=np.int64)
        map_rows(find_rows, len(words), words, self.words, self.slots, positions)
        return torch.from_numpy(positions).to(rows.device)

    @property
    def rows(self) -> Tensor:
        """What it holds, in order of arrival, int64 [size, 2, W] (or [size, W])."""
        return torch.from_numpy(self.words[: self.size].view(np.int64)).view(-1, *self.shape)

    def _reserve(self, size: int) -> None:
        if size > len(self.words):
            grown = np.empty((max(size, 2 * self.size), self.words.shape[1]), dtype=np.uint64)
            grown[: self.size] = self.words[: self.size]
            self.words = grown
        if 2 * size > len(self.slots):
            self.slots = np.full(1 << (2 * size - 1).bit_length(), -1, dtype=np.int64)
            held = self.words[: self.size]
            insert_all(held, self.words, 0, self.slots, np.empty(self.size, dtype=np.int64))


def as_words(determinants: Tensor) -> Words:
    """The determinants as kernels read them: the same bits as uint64, in contiguous host memory."""
    return determinants.detach().cpu().contiguous().numpy().view(np.uint64)


@jit
def hash_row(rows, n):
    """Mix the words of row n (the finaliser of SplitMix64 after each one)."""
    mixed = np.uint64(0x9E3779B97F4A7C15)
    for w in range(rows.shape[1]):
        mixed ^= rows[n, w]
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    return mixed


@jit
def find_slot(rows, n, held, slots):
    """Slot of row n: the one that holds its position in ``held``, or the empty one where it would go."""
    mask = np.uint64(slots.shape[0] - 1)
    slot = hash_row(rows, n) & mask
    while True:
        position = slots[slot]
        if position < 0:
            return slot
        differ = False
        for w in range(rows.shape[1]):
            differ |= held[position, w] != rows[n, w]
        if not differ:
            return slot
        slot = (slot + np.uint64(1)) & mask


@jit
def insert_all(rows, held, size, slots, positions):
    """Append the new ones of ``rows`` to the first ``size`` of ``held``; return the new size."""
    for row in range(rows.shape[0]):
        slot = find_slot(rows, row, held, slots)
        if slots[slot] < 0:
            held[size] = rows[row]
            slots[slot] = size
            size += 1
        positions[row] = slots[slot]
    return size


@jit
def find_rows(start, stop, queries, held, slots, positions):
    """Position of a block of ``queries``, −1 where absent.

    The first looks of many queries come before any is judged: so the waits for memory overlap.
    """
    mask = np.uint64(slots.shape[0] - 1)
    for first in range(start, stop, AHEAD):
        last = min(first + AHEAD, stop)
        for row in range(first, last):
            positions[row] = slots[hash_row(queries, row) & mask]
        for row in range(first, last):
            if positions[row] >= 0:
                differ = False
                for w in range(queries.shape[1]):
                    differ |= held[positions[row], w] != queries[row, w]
                if differ:
                    positions[row] = slots[find_slot(queries, row, held, slots)]
