"""Determinants of a set sorted into groups that share a spin string, and the excitations between strings."""

# Kernels take what numba infers.
# mypy: disallow-untyped-defs=False

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from nnqs_lightning.fock.compiled import jit, map_rows, popcount
from nnqs_lightning.fock.lookup import DeterminantTable, find_slot
from nnqs_lightning.hamiltonian.slater_condon import (
    Tables,
    count_below,
    empty_orbitals,
    occupied_orbitals,
    single_sign,
    string_element,
    write_excited,
)

Words = NDArray[np.uint64]
Indices = NDArray[np.int64]


class Strings(NamedTuple):
    """Strings of one spin, as kernels read them."""

    words: Words
    """[n, W]"""
    occupied: Indices
    """[n, n_electrons]: occupied orbitals, rising."""
    ranks: Indices
    """[n, n_orb]: number of electrons below each orbital."""


class SpinStrings:
    """The distinct strings of one spin in a set of determinants, numbered."""

    def __init__(self, strings: Tensor, n_electrons: int, n_orb: int) -> None:
        """
        Args:
            strings: int64 [N, W], one per determinant.
            n_electrons: electrons in each.
            n_orb: number of orbitals.
        """
        self.n_electrons = n_electrons
        self.n_orb = n_orb
        self.table = DeterminantTable(strings)
        self.number: Indices = self.table.find(strings).numpy()
        """[N]: number of each determinant's string."""
        n = len(self.table)
        self.all = Strings(
            self.table.words[:n],
            np.empty((n, n_electrons), dtype=np.int64),
            np.empty((n, n_orb), dtype=np.int64),
        )
        map_rows(describe_rows, n, self.all)

    def __len__(self) -> int:
        return len(self.table)


class Groups(NamedTuple):
    """Determinants sorted by the string of one spin (the shared one), within a group by the other."""

    offsets: Indices
    """[n_shared + 1]: group g is ``offsets[g] : offsets[g + 1]``."""
    order: Indices
    """[N]: position in the set."""
    other: NDArray[np.uint32]
    """[N]: number of the other spin's string."""


def group(shared: SpinStrings, other: SpinStrings, rows: Indices) -> Groups:
    """Groups of the determinants at positions ``rows`` of a set."""
    order = rows[np.argsort(shared.number[rows] * len(other) + other.number[rows], kind="stable")]
    offsets = np.searchsorted(shared.number[order], np.arange(len(shared) + 1))
    return Groups(offsets, order, other.number[order].astype(np.uint32))


class Links(NamedTuple):
    """Single excitations between the strings of one spin, those into strings of the set only."""

    offsets: Indices
    """[n + 1]: the excitations of string s are ``offsets[s] : offsets[s + 1]``."""
    target: NDArray[np.uint32]
    """[L]: number of the excited string."""
    pair: NDArray[np.uint32]
    """[L]: n_orb · i + a for the excitation i → a."""
    sign: NDArray[np.float64]
    """[L]: sign of a†_a a_i."""

    def sum_over_targets(self, values: NDArray[np.generic]) -> NDArray[np.float64]:
        """Σ over the links of each string of ``values`` at their targets, [n]."""
        running = np.concatenate([[0.0], np.cumsum(values[self.target])])
        return running[self.offsets[1:]] - running[self.offsets[:-1]]


def single_links(strings: SpinStrings) -> Links:
    """Find the single excitations among ``strings``."""
    n, n_orb = len(strings), strings.n_orb
    width = strings.n_electrons * (n_orb - strings.n_electrons)
    targets = np.empty((n, width), dtype=np.int32)
    counts = np.empty(n, dtype=np.int64)
    held, slots = strings.table.words, strings.table.slots
    map_rows(find_single_rows, n, strings.all.words, n_orb, held, slots, targets, counts)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    links = Links(
        offsets,
        np.empty(offsets[-1], dtype=np.uint32),
        np.empty(offsets[-1], dtype=np.uint32),
        np.empty(offsets[-1]),
    )
    map_rows(fill_link_rows, n, strings.all.words, n_orb, targets, links)
    return links


def couplings(strings: SpinStrings, tables: Tables) -> NDArray[np.float64]:
    """Elements of H between strings of one spin, the other spin's electrons and e_core left out; [n, n]."""
    elements = np.zeros((len(strings), len(strings)))
    map_rows(coupling_rows, len(strings), strings.all, tables, elements)
    return elements


@jit
def describe_rows(start, stop, strings):
    """Fill in occupied orbitals and ranks of a block of strings."""
    for s in range(start, stop):
        occupied_orbitals(strings.words[s], strings.occupied[s])
        count_below(strings.words[s], strings.ranks[s])


@jit
def coupling_rows(start, stop, strings, tables, elements):
    """:func:`couplings` of a block of strings with those from themselves on; the mirrored ones have no other writer."""
    for s in range(start, stop):
        for t in range(s, strings.words.shape[0]):
            bits = 0
            for w in range(strings.words.shape[1]):
                bits += popcount(strings.words[s, w] ^ strings.words[t, w])
            if bits <= 4:
                elements[s, t] = string_element(strings, s, t, bits, tables)
                elements[t, s] = elements[s, t]


@jit
def find_single_rows(start, stop, strings, n_orb, held, slots, targets, counts):
    """For a block of strings: the number of each excited string or −1, and how many are there."""
    occupied = np.empty(n_orb, dtype=np.int64)
    empty = np.empty(n_orb, dtype=np.int64)
    excited = np.empty((1, strings.shape[1]), dtype=np.uint64)
    for s in range(start, stop):
        string = strings[s]
        n_occupied = occupied_orbitals(string, occupied)
        n_empty = empty_orbitals(string, n_orb, empty)
        counts[s] = 0
        for k in range(n_occupied):
            for l in range(n_empty):
                write_excited(string, excited[0], occupied[k], empty[l])
                target = slots[find_slot(excited, 0, held, slots)]
                targets[s, k * n_empty + l] = target
                counts[s] += target >= 0


@jit
def fill_link_rows(start, stop, strings, n_orb, targets, links):
    """Write the links of a block of strings."""
    occupied = np.empty(n_orb, dtype=np.int64)
    empty = np.empty(n_orb, dtype=np.int64)
    for s in range(start, stop):
        n_occupied = occupied_orbitals(strings[s], occupied)
        n_empty = empty_orbitals(strings[s], n_orb, empty)
        place = links.offsets[s]
        for k in range(n_occupied):
            for l in range(n_empty):
                if targets[s, k * n_empty + l] >= 0:
                    links.target[place] = targets[s, k * n_empty + l]
                    links.pair[place] = occupied[k] * n_orb + empty[l]
                    links.sign[place] = single_sign(strings[s], occupied[k], empty[l])
                    place += 1
