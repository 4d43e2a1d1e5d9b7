"""A sparse Hamiltonian that is kept from one set of determinants to the next."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from torch import Tensor

from nnqs_lightning.errors import UserError
from nnqs_lightning.fock.compiled import map_rows
from nnqs_lightning.hamiltonian.molecular import MolecularHamiltonian
from nnqs_lightning.hamiltonian.neighbours import product_rows
from nnqs_lightning.hamiltonian.pair_scan import near_rows
from nnqs_lightning.hamiltonian.strings import Indices
from nnqs_lightning.hamiltonian.subspace import Subspace

ENTRY_BYTES = 40
"""Memory for an entry: 12 bytes at rest (element and column), the rest while newcomers are found and merged."""

SHARES = 8
"""Newcomers are looked for by so many parts of the memory, or by more."""


class KeptHamiltonian:
    """Rows of H for determinants wanted lately, over determinants seen lately.

    Members are kept in the order of their words and each row is summed in that order; a member that is not in the
    present set has ψ = 0 and adds nothing. So the sums are the same bits whatever was seen before: a resumed run, which
    starts with nothing kept, goes on exactly as it would have.
    """

    def __init__(self, hamiltonian: MolecularHamiltonian, max_bytes: int) -> None:
        self.hamiltonian = hamiltonian
        self.max_entries = max_bytes // ENTRY_BYTES
        self.members: Tensor = hamiltonian.sector.aufbau()[:0]
        """int64 [U, 2, W] in the order of their words."""
        self.last_used = np.zeros(0, dtype=np.int64)
        self.has_row = np.zeros(0, dtype=np.bool_)
        """Whether the row of a member is known; rows of others are empty in :attr:`matrix`."""
        self.matrix = csr_matrix((0, 0))
        self._is_new = np.zeros(0, dtype=np.bool_)
        """Members whose columns the rows do not have yet."""
        self.step = 0
        self.n_new_rows = 0
        """Rows that the last update had to compute."""

    def may_fit(self, determinants: Tensor, rows: Indices) -> bool:
        """Whether it is worth trying, judged by some rows of the set and by nothing that was kept."""
        if len(rows) * min(self.hamiltonian.n_connected, len(determinants)) <= self.max_entries:
            return True
        some = rows[:: max(1, len(rows) // 64)]
        words = self.hamiltonian.words(determinants)
        counts = np.empty(len(some), dtype=np.int64)
        map_rows(near_rows, len(some), some, words, counts)
        return counts.mean() * len(rows) <= self.max_entries

    def update(self, determinants: Tensor, rows: Indices) -> Indices | None:
        """Take in a set of which the rows at positions ``rows`` are wanted; the place of each one among the members.

        Entries are counted as they are made. Where they would pass the bound, members not used for longest leave first,
        then all that is not of this set. If even H of the set alone has too many, the answer is None: so it is whatever
        was kept before.

        Raises:
            UserError: a determinant occurs twice.
        """
        self.step += 1
        place = self._admit(determinants)
        self.last_used[place] = self.step
        added = self._added(place[rows])
        for leave in (self._leave_unused, self._leave_unwanted):
            if added is None:
                place = leave(place, place[rows])
                added = self._added(place[rows])
        if added is None:
            self._leave(~self._is_new, self.has_row)
            return None
        if added.nnz:
            self.matrix = added if self.matrix.nnz == 0 else self.matrix + added
            self.matrix.sort_indices()
        self.has_row[place[rows]] = True
        return place

    def product(self, psi: NDArray[np.complex128], place: Indices, rows: Indices) -> NDArray[np.complex128]:
        """Σ_D' H_DD' ψ(D') over the set at ``place`` for its members at positions ``rows``, complex [M]."""
        parts = np.zeros((len(self.members), 2))
        parts[place, 0], parts[place, 1] = psi.real, psi.imag
        sums = np.empty((len(rows), 2))
        matrix = self.matrix
        map_rows(product_rows, len(rows), place[rows], matrix.indptr, matrix.indices, matrix.data, parts, sums)
        return sums.view(np.complex128)[:, 0]

    def _admit(self, determinants: Tensor) -> Indices:
        """Merge the set into the members; the place of each of its determinants."""
        n_old = len(self.members)
        both = torch.cat([self.members, determinants.cpu()])
        keys = both.flatten(1).T.numpy()[::-1]
        order = np.lexsort(keys)
        ordered = both[torch.from_numpy(order)]
        is_first = np.ones(len(both), dtype=np.bool_)
        is_first[1:] = (ordered[1:] != ordered[:-1]).flatten(1).any(1).numpy()
        place = np.empty(len(both), dtype=np.int64)
        place[order] = np.cumsum(is_first) - 1
        old, new, size = place[:n_old], place[n_old:], int(is_first.sum())
        repeated = len(new) - len(np.unique(new))
        if repeated:
            raise UserError(f"{repeated} determinants occur twice among {len(new)}, expected distinct ones")
        self.members = ordered[torch.from_numpy(is_first)]
        self._is_new = ~scattered(np.ones(n_old, dtype=np.bool_), old, size)
        if size > n_old:
            self.last_used = scattered(self.last_used, old, size)
            self.has_row = scattered(self.has_row, old, size)
            offsets = np.concatenate([[0], np.cumsum(scattered(np.diff(self.matrix.indptr), old, size))])
            columns = old.astype(np.int32)[self.matrix.indices]
            self.matrix = csr_matrix((self.matrix.data, columns, offsets), shape=(size, size))
        return new

    def _added(self, wanted: Indices) -> csr_matrix | None:
        """Rows that are wanted and missing, and what new members add to the old rows; None where that is too much."""
        size, room = len(self.members), self.max_entries - self.matrix.nnz
        old_rows, new_columns = np.flatnonzero(self.has_row), np.flatnonzero(self._is_new)
        new_rows = np.setdiff1d(wanted, old_rows)
        self.n_new_rows = len(new_rows)
        if not len(new_rows) and not len(new_columns):
            return csr_matrix((size, size))
        subspace = self.hamiltonian.subspace(self.members, np.arange(size))
        whole_rows = self._connected(subspace, new_rows, np.arange(size))
        old_row_ends = ((rows, columns) for columns, rows in self._connected(subspace, new_columns, old_rows))
        parts = [(np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int32), np.zeros(0))]
        for rows, columns in chain(whole_rows, old_row_ends):
            elements = subspace.elements(rows, columns)
            held = elements != 0
            parts.append((rows[held].astype(np.int32), columns[held].astype(np.int32), elements[held]))
            room -= len(parts[-1][0])
            if room < 0:
                return None
        rows, columns, elements = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        parts.clear()
        return csr_matrix((elements, (rows, columns)), shape=(size, size))

    def _connected(self, subspace: Subspace, targets: Indices, sources: Indices) -> Iterator[tuple[Indices, Indices]]:
        """Connected pairs, for so many targets at once that their pairs take a small share of the memory."""
        share = self.max_entries // SHARES
        at_once = max(1, share // min(self.hamiltonian.n_connected, len(self.members)))
        start = 0
        while start < len(targets) and len(sources):
            pairs = subspace.pattern(targets[start : start + at_once], sources)
            yield pairs
            start += at_once
            if 2 * len(pairs[0]) < share:
                at_once *= 2

    def _leave_unused(self, place: Indices, wanted: Indices) -> Indices:
        """Drop the members not used for longest, never the present set, until half of the entries are left."""
        share = np.diff(self.matrix.indptr) + np.bincount(self.matrix.indices, minlength=len(self.members))
        by_age = np.argsort(-self.last_used, kind="stable")
        is_kept = np.zeros(len(self.members), dtype=np.bool_)
        # An entry leaves with its row or its column: half of each is a fair share.
        is_kept[by_age[np.cumsum(share[by_age]) / 2 < self.max_entries / 2]] = True
        is_kept[place] = True
        return self._leave(is_kept, self.has_row)[place]

    def _leave_unwanted(self, place: Indices, wanted: Indices) -> Indices:
        """Drop all but the present set and its wanted rows."""
        is_member = scattered(np.ones(len(place), dtype=np.bool_), place, len(self.members))
        is_wanted = scattered(np.ones(len(wanted), dtype=np.bool_), wanted, len(self.members))
        return self._leave(is_member, self.has_row & is_wanted)[place]

    def _leave(self, is_kept: NDArray[np.bool_], has_row: NDArray[np.bool_]) -> Indices:
        """Keep some members, and of them the rows of some; the new place of each member."""
        kept = np.flatnonzero(is_kept)
        matrix = self.matrix[kept]
        stays = np.repeat(has_row[kept], np.diff(matrix.indptr)) & is_kept[matrix.indices]
        running = np.concatenate([np.zeros(1, dtype=np.int32), np.cumsum(stays, dtype=np.int32)])
        place = np.cumsum(is_kept, dtype=np.int32) - 1
        entries = matrix.data[stays], place[matrix.indices[stays]], running[matrix.indptr]
        self.matrix = csr_matrix(entries, shape=(len(kept), len(kept)))
        self.members = self.members[torch.from_numpy(kept)]
        self.last_used, self.has_row, self._is_new = self.last_used[kept], has_row[kept], self._is_new[kept]
        return place.astype(np.int64)


def scattered(values: NDArray, place: Indices, size: int) -> NDArray:
    """``values`` put at ``place`` of an array of ``size`` zeros."""
    result = np.zeros(size, dtype=values.dtype)
    result[place] = values
    return result
