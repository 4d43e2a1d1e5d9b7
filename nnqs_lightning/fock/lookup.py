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


class DeterminantTable:
    """A growing set of distinct determinants, numbered in order of arrival.

    Open addressing with linear probing; at least half of the slots stay empty. It lives in host memory.
    """

    def __init__(self, determinants: Tensor) -> None:
        """Start with the rows of ``determinants``, int64 [N, 2, W]; of equal rows the first one counts."""
        self.size = 0
        self.words: Words = np.empty((0, *determinants.shape[1:]), dtype=np.uint64)
        """[≥ size, 2, W]: the determinants, then free space."""
        self.slots = np.full(16, -1, dtype=np.int64)
        self.insert(determinants)

    def __len__(self) -> int:
        return self.size

    def insert(self, determinants: Tensor) -> Tensor:
        """Add what is new; the position of every row, int64 [N]."""
        rows = as_words(determinants)
        self._reserve(self.size + len(rows))
        positions = np.empty(len(rows), dtype=np.int64)
        self.size = insert_all(rows, self.words, self.size, self.slots, positions)
        return torch.from_numpy(positions).to(determinants.device)

    def find(self, determinants: Tensor) -> Tensor:
        """Position of each row, −1 where it is absent, int64 [N]."""
        rows = as_words(determinants)
        positions = np.empty(len(rows), dtype=np.int64)
        map_rows(find_rows, len(rows), rows, self.words, self.slots, positions)
        return torch.from_numpy(positions).to(determinants.device)

    @property
    def determinants(self) -> Tensor:
        """The determinants in order of arrival, int64 [size, 2, W]."""
        return torch.from_numpy(self.words[: self.size].view(np.int64))

    def _reserve(self, size: int) -> None:
        if size > len(self.words):
            grown = np.empty((max(size, 2 * self.size), *self.words.shape[1:]), dtype=np.uint64)
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
def hash_determinant(determinant):
    """Mix the words of a determinant [2, W] (the finaliser of SplitMix64 after each word)."""
    mixed = np.uint64(0x9E3779B97F4A7C15)
    for spin in range(2):
        for w in range(determinant.shape[1]):
            mixed ^= determinant[spin, w]
            mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            mixed ^= mixed >> np.uint64(31)
    return mixed


@jit
def equal(left, right):
    """Whether two determinants [2, W] are the same."""
    for spin in range(2):
        for w in range(left.shape[1]):
            if left[spin, w] != right[spin, w]:
                return False
    return True


@jit
def find_slot(determinant, determinants, slots):
    """Slot of ``determinant``: the one that holds its position, or the empty one where it would go."""
    mask = np.uint64(slots.shape[0] - 1)
    slot = hash_determinant(determinant) & mask
    while slots[slot] >= 0 and not equal(determinants[slots[slot]], determinant):
        slot = (slot + np.uint64(1)) & mask
    return slot


@jit
def insert_all(rows, determinants, size, slots, positions):
    """Append the new ones of ``rows`` to the first ``size`` ``determinants``; return the new size."""
    for row in range(rows.shape[0]):
        slot = find_slot(rows[row], determinants, slots)
        if slots[slot] < 0:
            determinants[size] = rows[row]
            slots[slot] = size
            size += 1
        positions[row] = slots[slot]
    return size


@jit
def find_rows(start, stop, queries, determinants, slots, positions):
    """Position of a block of ``queries``, −1 where absent."""
    for row in range(start, stop):
        positions[row] = slots[find_slot(queries[row], determinants, slots)]
