"""H within a set of determinants."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from nnqs_lightning.errors import UserError
from nnqs_lightning.fock import Sector
from nnqs_lightning.fock.compiled import map_rows
from nnqs_lightning.fock.lookup import DeterminantTable, as_words
from nnqs_lightning.hamiltonian.hash_search import hash_rows, quotient_rows
from nnqs_lightning.hamiltonian.pair_scan import pair_rows
from nnqs_lightning.hamiltonian.slater_condon import Tables, diagonal_rows
from nnqs_lightning.hamiltonian.strategy import Strategy
from nnqs_lightning.hamiltonian.string_groups import coupled_rows, linked_rows, scanned_rows
from nnqs_lightning.hamiltonian.strings import Groups, Links, SpinStrings, couplings, group, single_links

LOG_TINY = -300.0
"""Below e^LOG_TINY of the largest, amplitudes are divided as differences of logarithms: they may underflow."""

MAX_COUPLED = 2048
"""Up to so many strings, elements between all pairs of them are kept in a table (32 MiB)."""

Parts = NDArray[np.float64]
"""Complex numbers as [N, 2], real and imaginary."""


class Subspace:
    """A set of determinants, some of whose rows of H are wanted, with what the strategies share."""

    def __init__(
        self, sector: Sector, tables: Tables, n_connected: int, determinants: Tensor, rows: NDArray[np.int64]
    ) -> None:
        """
        Args:
            sector: where the determinants live.
            tables: integrals.
            n_connected: number of states that H connects to one.
            determinants: int64 [N, 2, W], distinct.
            rows: [M] positions in the set of the D of Σ_D' H_DD' ψ(D').
        """
        self.sector = sector
        self.tables = tables
        self.n_connected = n_connected
        self.determinants = determinants
        self.words = as_words(determinants)
        self.rows = rows

    @cached_property
    def table(self) -> DeterminantTable:
        """Position of each determinant."""
        return DeterminantTable(self.determinants)

    @cached_property
    def strings(self) -> tuple[SpinStrings, SpinStrings]:
        """Distinct α and β strings."""
        n_orb, n_alpha, n_beta = self.sector.n_orb, self.sector.n_alpha, self.sector.n_beta
        return (
            SpinStrings(self.determinants[:, 0], n_alpha, n_orb),
            SpinStrings(self.determinants[:, 1], n_beta, n_orb),
        )

    @cached_property
    def links(self) -> tuple[Links, Links]:
        """Single excitations among the α and among the β strings."""
        alpha, beta = self.strings
        return single_links(alpha), single_links(beta)

    def groups(self, shared: int, rows: NDArray[np.int64]) -> Groups:
        """Determinants at ``rows`` by their string of spin ``shared``."""
        return group(self.strings[shared], self.strings[1 - shared], rows)

    def local_energies(self, log_psi: NDArray[np.complex128], strategy: Strategy) -> NDArray[np.complex128]:
        """Σ_D' H_DD' ψ(D') / ψ(D) of the wanted rows, complex [M]."""
        if len(self.table) < len(self.words):
            raise UserError(
                f"{len(self.words) - len(self.table)} determinants occur twice in a set of {len(self.words)}"
            )
        if not len(self.rows):
            return np.zeros(0, dtype=np.complex128)
        relative = log_psi - log_psi.real.max()
        psi = np.where(np.isneginf(relative.real), 0, np.exp(relative))
        sums = self.contract(psi, strategy)
        with np.errstate(all="ignore"):
            values = sums / psi[self.rows]
        tiny = np.flatnonzero(relative.real[self.rows] < LOG_TINY)
        if len(tiny):
            values[tiny] = self._quotients(log_psi, self.rows[tiny])
        return values

    def contract(self, psi: NDArray[np.complex128], strategy: Strategy) -> NDArray[np.complex128]:
        """Σ_D' H_DD' ψ(D') of the wanted rows, complex [M]."""
        parts = np.ascontiguousarray(psi).view(np.float64).reshape(-1, 2)
        contract = {
            Strategy.auto: self._by_groups,
            Strategy.string_factored: self._by_groups,
            Strategy.string_groups: self._by_groups,
            Strategy.hash: self._by_hash,
            Strategy.pair_scan: self._by_pairs,
        }[strategy]
        return contract(parts).view(np.complex128)[:, 0]

    def _by_groups(self, psi: Parts) -> Parts:
        diagonal = np.empty(len(self.rows))
        map_rows(diagonal_rows, len(self.rows), self.words[self.rows], self.tables, diagonal)
        sums = diagonal[:, None] * psi[self.rows]
        everything = np.arange(len(self.words))
        for shared in (0, 1):
            sources, targets = self.groups(shared, everything), self.groups(shared, self.rows)
            psi_sorted, result = psi[sources.order], np.zeros_like(sums)
            self._add_one_spin(shared, targets, sources, psi_sorted, result)
            if shared == 0:
                self._add_two_spins(targets, sources, psi_sorted, result)
            sums[self._place(targets)] += result
        return sums

    def _add_one_spin(self, shared: int, targets: Groups, sources: Groups, psi: Parts, sums: Parts) -> None:
        strings = self.strings[1 - shared]
        n_groups = len(self.strings[shared])
        if len(strings) <= MAX_COUPLED:
            map_rows(coupled_rows, n_groups, targets, sources, couplings(strings, self.tables), psi, sums)
        else:
            source_words = np.ascontiguousarray(strings.words[sources.other].T)
            map_rows(
                scanned_rows, n_groups, targets, sources, strings.words, strings.occupied, source_words, self.tables,
                psi, sums,
            )  # fmt: skip

    def _add_two_spins(self, targets: Groups, sources: Groups, psi: Parts, sums: Parts) -> None:
        alpha, beta = self.strings
        n = self.sector.n_orb
        n_links = np.diff(self.links[1].offsets)
        link_sums = np.concatenate([[0], np.cumsum(n_links[sources.other])])
        map_rows(
            linked_rows, len(alpha), targets, sources, *self.links, alpha.occupied, beta.occupied, link_sums,
            self.tables.eri.reshape(n * n, n * n), psi, sums,
        )  # fmt: skip

    def _place(self, targets: Groups) -> NDArray[np.int64]:
        """Where in ``rows`` each sorted target stands."""
        place = np.empty(len(self.words), dtype=np.int64)
        place[self.rows] = np.arange(len(self.rows))
        return place[targets.order]

    def _by_hash(self, psi: Parts) -> Parts:
        sums = np.empty((len(self.rows), 2))
        map_rows(
            hash_rows, len(self.rows), self.rows, self.table.words, self.table.slots, self.tables, self.n_connected,
            psi, sums,
        )  # fmt: skip
        return sums

    def _by_pairs(self, psi: Parts) -> Parts:
        sums = np.empty((len(self.rows), 2))
        map_rows(pair_rows, len(self.rows), self.rows, self.words, self.tables, psi, sums)
        return sums

    def _quotients(self, log_psi: NDArray[np.complex128], rows: NDArray[np.int64]) -> NDArray[np.complex128]:
        values = np.empty(len(rows), dtype=np.complex128)
        map_rows(
            quotient_rows, len(rows), rows, self.table.words, self.table.slots, self.tables, self.n_connected, log_psi,
            values,
        )  # fmt: skip
        return values
