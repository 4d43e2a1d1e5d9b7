"""A sparse Hamiltonian that is kept from one set of determinants to the next."""

from __future__ import annotations

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

ENTRY_BYTES = 12
"""A float64 element and an int32 column."""


class KeptHamiltonian:
    """Rows of H for determinants wanted lately, over determinants seen lately.

    Members are kept in the order of their words and each row is summed in that order; a member that is not in the
    present set has ψ = 0 and adds nothing. So the sums are the same bits whatever was seen before: a resumed run, which
    starts with nothing kept, goes on exactly as it would have.
    """

    def __init__(self, hamiltonian: MolecularHamiltonian, max_bytes: int) -> None:
        self.hamiltonian = hamiltonian
        self.max_bytes = max_bytes
        self.members: Tensor = hamiltonian.sector.aufbau()[:0]
        """int64 [U, 2, W] in the order of their words."""
        self.last_used = np.zeros(0, dtype=np.int64)
        self.has_row = np.zeros(0, dtype=np.bool_)
        """Whether the row of a member is known; rows of others are empty in :attr:`matrix`."""
        self.matrix = csr_matrix((0, 0))
        self.step = 0
        self.n_new_rows = 0
        """Rows that the last update had to compute."""

    def fits(self, determinants: Tensor, rows: Indices) -> bool:
        """Whether H of a set fits into the memory, judged by some of its rows and by nothing that was kept."""
        at_most = len(rows) * min(self.hamiltonian.n_connected, len(determinants))
        if at_most * ENTRY_BYTES <= self.max_bytes:
            return True
        some = rows[:: max(1, len(rows) // 64)]
        words = self.hamiltonian.words(self.hamiltonian.span(determinants))
        counts = np.empty(len(some), dtype=np.int64)
        map_rows(near_rows, len(some), some, words, counts)
        return counts.mean() * len(rows) * ENTRY_BYTES <= self.max_bytes

    def update(self, determinants: Tensor, rows: Indices) -> Indices:
        """Take in a set of which the rows at positions ``rows`` are wanted; the place of each one among the members.

        Raises:
            UserError: a determinant occurs twice.
        """
        self.step += 1
        place = self._admit(determinants)
        self.last_used[place] = self.step
        new_rows = scattered(np.ones(len(rows), dtype=np.bool_), place[rows], len(self.members)) & ~self.has_row
        self.n_new_rows = int(new_rows.sum())
        if new_rows.any() or self._is_new.any():
            self._add_entries(np.flatnonzero(new_rows), np.flatnonzero(self._is_new))
            self.has_row |= new_rows
        if ENTRY_BYTES * self.matrix.nnz > self.max_bytes:
            place = self._forget(place)
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
        self.members = ordered[torch.from_numpy(is_first)]
        old, new, size = place[:n_old], place[n_old:], len(self.members)
        repeated = len(new) - np.count_nonzero(scattered(np.ones(len(new), dtype=np.bool_), new, size))
        if repeated:
            raise UserError(f"{repeated} determinants occur twice among {len(new)}, expected distinct ones")
        self._is_new = ~scattered(np.ones(n_old, dtype=np.bool_), old, size)
        if size > n_old:
            self.last_used = scattered(self.last_used, old, size)
            self.has_row = scattered(self.has_row, old, size)
            offsets = np.concatenate([[0], np.cumsum(scattered(np.diff(self.matrix.indptr), old, size))])
            columns = old.astype(np.int32)[self.matrix.indices]
            self.matrix = csr_matrix((self.matrix.data, columns, offsets), shape=(size, size))
        return new

    def _add_entries(self, new_rows: Indices, new_columns: Indices) -> None:
        """Compute the new rows whole, and what new columns add to the old rows."""
        everything = np.arange(len(self.members))
        subspace = self.hamiltonian.subspace(self.members, everything)
        rows, columns = subspace.pattern(new_rows, everything)
        old_columns, old_rows = subspace.pattern(new_columns, np.flatnonzero(self.has_row))
        rows, columns = np.concatenate([rows, old_rows]), np.concatenate([columns, old_columns])
        added = csr_matrix((subspace.elements(rows, columns), (rows, columns)), shape=self.matrix.shape)
        self.matrix = added if self.matrix.nnz == 0 else self.matrix + added
        self.matrix.sort_indices()

    def _forget(self, place: Indices) -> Indices:
        """Drop the members used least lately, never the present set, until three quarters of the memory are in use."""
        share = np.diff(self.matrix.indptr) + np.bincount(self.matrix.indices, minlength=len(self.members))
        by_age = np.argsort(-self.last_used, kind="stable")
        is_kept = np.zeros(len(self.members), dtype=np.bool_)
        # An entry leaves with its row or its column: half of each is a fair share.
        held = np.cumsum(share[by_age]) * ENTRY_BYTES / 2
        is_kept[by_age[held < 0.75 * self.max_bytes]] = True
        is_kept[place] = True
        kept = np.flatnonzero(is_kept)
        self.matrix = self.matrix[kept][:, kept]
        self.matrix.sort_indices()
        self.members = self.members[torch.from_numpy(kept)]
        self.last_used, self.has_row = self.last_used[kept], self.has_row[kept]
        return (np.cumsum(is_kept) - 1)[place]


def scattered(values: NDArray, place: Indices, size: int) -> NDArray:
    """``values`` put at ``place`` of an array of ``size`` zeros."""
    result = np.zeros(size, dtype=values.dtype)
    result[place] = values
    return result
