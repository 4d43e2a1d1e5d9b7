"""H within a set of determinants."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from nnqs_lightning.chem.integrals import Array
from nnqs_lightning.errors import UserError
from nnqs_lightning.fock import Sector
from nnqs_lightning.fock.compiled import map_rows
from nnqs_lightning.fock.lookup import DeterminantTable, as_words
from nnqs_lightning.hamiltonian.hash_search import Members, hash_rows, members, quotient_rows
from nnqs_lightning.hamiltonian.neighbours import element_rows, neighbour_rows
from nnqs_lightning.hamiltonian.pair_scan import pair_rows
from nnqs_lightning.hamiltonian.slater_condon import Tables
from nnqs_lightning.hamiltonian.strategy import Strategy, Work
from nnqs_lightning.hamiltonian.string_factored import factored_rows, one_spin_products, packed_pairs
from nnqs_lightning.hamiltonian.string_groups import coupled_rows, linked_rows, scanned_rows
from nnqs_lightning.hamiltonian.strings import Groups, Indices, Links, SpinStrings, couplings, group, single_links

LOG_TINY = -300.0
"""Below e^LOG_TINY of the largest, amplitudes are divided as differences of logarithms: they may underflow."""

MAX_TABLE_BYTES = 1 << 28
"""Largest table of ψ over α × β strings."""

MAX_COUPLED = 2048
"""Up to so many strings, elements between all pairs of them are kept in a table (32 MiB)."""

Amplitudes = NDArray[np.complex128]

Parts = NDArray[np.float64]
"""Complex numbers as [N, 2], real and imaginary."""


class Subspace:
    """A set of determinants, some of whose rows of H are wanted, with what the strategies share."""

    def __init__(self, sector: Sector, tables: Tables, n_connected: int, determinants: Tensor, rows: Indices) -> None:
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
    def members(self) -> Members:
        """The set as the hash search reads it."""
        return members(self.table.words, self.table.slots, len(self.table))

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

    def couplings(self, spin: int) -> Array:
        """Elements between all strings of ``spin``."""
        return couplings(self.strings[spin], self.tables)

    def groups(self, shared: int, rows: Indices) -> Groups:
        """Determinants at ``rows`` by their string of spin ``shared``."""
        return group(self.strings[shared], self.strings[1 - shared], rows)

    def local_energies(self, log_psi: Amplitudes, contract: Callable[[Amplitudes], Amplitudes]) -> Amplitudes:
        """Σ_D' H_DD' ψ(D') / ψ(D) of the wanted rows, complex [M].

        Args:
            log_psi: complex [N].
            contract: what sums H ψ for the wanted rows, given ψ up to a factor.
        """
        if not len(self.rows):
            return np.zeros(0, dtype=np.complex128)
        relative = log_psi - log_psi.real.max()
        psi = np.where(np.isneginf(relative.real), 0, np.exp(relative))
        with np.errstate(all="ignore"):
            values = contract(psi) / psi[self.rows]
        tiny = np.flatnonzero(relative.real[self.rows] < LOG_TINY)
        if len(tiny):
            values[tiny] = self._quotients(log_psi, self.rows[tiny])
        return values

    def contract(self, psi: Amplitudes, strategy: Strategy) -> Amplitudes:
        """Σ_D' H_DD' ψ(D') of the wanted rows, complex [M].

        Raises:
            UserError: a determinant occurs twice.
        """
        repeated = len(self.words) - len(self.table)
        if repeated:
            raise UserError(f"{repeated} determinants occur twice among {len(self.words)}, expected distinct ones")
        if strategy is Strategy.auto:
            strategy = self.work().cheapest()
        parts = np.ascontiguousarray(psi).view(np.float64).reshape(-1, 2)
        contract = {
            Strategy.string_factored: self._by_factors,
            Strategy.string_groups: self._by_groups,
            Strategy.hash: self._by_hash,
            Strategy.pair_scan: self._by_pairs,
        }[strategy]
        return contract(parts).view(np.complex128)[:, 0]

    def work(self) -> Work:
        """What each strategy would have to do."""
        alpha, beta = self.strings
        n_rows, n_orb = len(self.rows), self.sector.n_orb
        alpha_links, beta_links = (np.diff(links.offsets) for links in self.links)
        counts = np.bincount(alpha.number, minlength=len(alpha))
        targets = np.bincount(alpha.number[self.rows], minlength=len(alpha))
        link_sums = np.bincount(alpha.number, weights=beta_links[beta.number], minlength=len(alpha))
        reached = self.links[0].sum_over_targets(link_sums), self.links[0].sum_over_targets(counts)
        visits = np.where(targets > 0, np.minimum(reached[0], targets * reached[1]), 0).sum()
        size = len(alpha) * len(beta)
        n_pairs = n_orb * (n_orb + 1) // 2
        per_group = n_pairs * (alpha_links + alpha.n_electrons) * 2.0 * len(beta)
        products = per_group[targets > 0].sum() + 2.0 * size * (len(alpha) + len(beta))
        fits = 16 * size <= MAX_TABLE_BYTES and max(len(alpha), len(beta)) <= MAX_COUPLED
        coupled = [spin for spin in (0, 1) if self._is_coupled(spin)]
        return Work(
            products=float(products) if fits else np.inf,
            gathered=float(n_rows * (beta_links.mean() + beta.n_electrons)),
            visits=float(visits),
            read_pairs=sum(self._pairs_in_groups(1 - spin) for spin in coupled),
            made_pairs=sum(len(self.strings[s]) ** 2 if s in coupled else self._pairs_in_groups(1 - s) for s in (0, 1)),
            connected=float(n_rows * self.n_connected),
            pairs=float(n_rows * len(self.words)),
            strings=float(sum(len(s) * s.n_electrons * (n_orb - s.n_electrons) for s in (alpha, beta))),
        )

    def _by_factors(self, psi: Parts) -> Parts:
        alpha, beta = self.strings
        targets = self.groups(0, self.rows)
        table = np.zeros((2, len(alpha), len(beta)))
        table[:, alpha.number, beta.number] = psi.T
        result = np.zeros((len(self.rows), 2))
        map_rows(
            factored_rows, len(alpha), targets, *self.links, alpha.all, beta.all,
            packed_pairs(self.tables.eri), table, result,
        )  # fmt: skip
        one_spin = one_spin_products(table, self.couplings(0), self.couplings(1))
        sums = one_spin[:, alpha.number[self.rows], beta.number[self.rows]].T + self.tables.e_core * psi[self.rows]
        sums[self._place(targets)] += result
        return np.ascontiguousarray(sums)

    def _by_groups(self, psi: Parts) -> Parts:
        sums = self.tables.e_core * psi[self.rows]
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
        if self._is_coupled(1 - shared):
            map_rows(coupled_rows, n_groups, targets, sources, self.couplings(1 - shared), psi, sums)
        else:
            source_words = np.ascontiguousarray(strings.all.words[sources.other].T)
            map_rows(
                scanned_rows, n_groups, targets, sources, strings.all, source_words, self.tables,
                psi, sums,
            )  # fmt: skip

    def _is_coupled(self, spin: int) -> bool:
        """Whether a table of elements between all strings of ``spin`` costs less than making them on the spot."""
        n_strings = len(self.strings[spin])
        return n_strings <= MAX_COUPLED and n_strings**2 <= 4 * self._pairs_in_groups(1 - spin)

    def _pairs_in_groups(self, shared: int) -> float:
        number = self.strings[shared].number
        counts = np.bincount(number, minlength=len(self.strings[shared]))
        return float(counts[number[self.rows]].sum())

    def _add_two_spins(self, targets: Groups, sources: Groups, psi: Parts, sums: Parts) -> None:
        alpha, beta = self.strings
        n = self.sector.n_orb
        n_links = np.diff(self.links[1].offsets)
        link_sums = np.concatenate([[0], np.cumsum(n_links[sources.other])])
        map_rows(
            linked_rows, len(alpha), targets, sources, *self.links, alpha.all, beta.all, link_sums,
            self.tables.eri.reshape(n * n, n * n), psi, sums,
        )  # fmt: skip

    def pattern(self, targets: Indices, sources: Indices) -> tuple[Indices, Indices]:
        """Positions of connected (target, source) pairs, D itself included; one array of each, sorted by neither."""
        alpha, beta = self.strings
        by_alpha, by_beta = self.groups(0, sources), self.groups(1, sources)
        target_groups = self.groups(0, targets)
        betas = np.ascontiguousarray(beta.all.words[by_alpha.other].T)
        alphas = np.ascontiguousarray(alpha.all.words[by_beta.other].T)
        blocks = map_rows(
            neighbour_rows, len(alpha), target_groups, by_alpha, by_beta, alpha.all, beta.all, betas, alphas,
            *self.links,
        )  # fmt: skip
        counts = np.concatenate([block[0] for block in blocks])
        return np.repeat(target_groups.order, counts), np.concatenate([block[1] for block in blocks])

    def elements(self, rows: Indices, columns: Indices) -> Array:
        """⟨D_row|H|D_column⟩ of pairs of positions in the set."""
        values = np.empty(len(rows))
        alpha, beta = self.strings
        map_rows(
            element_rows, len(rows), rows, columns, alpha.number, beta.number, alpha.all, beta.all, self.tables, values
        )  # fmt: skip
        return values

    def _place(self, targets: Groups) -> Indices:
        """Where in ``rows`` each sorted target stands."""
        place = np.empty(len(self.words), dtype=np.int64)
        place[self.rows] = np.arange(len(self.rows))
        return place[targets.order]

    def _by_hash(self, psi: Parts) -> Parts:
        sums = np.empty((len(self.rows), 2))
        map_rows(hash_rows, len(self.rows), self.rows, self.members, self.tables, self.n_connected, psi, sums)
        return sums

    def _by_pairs(self, psi: Parts) -> Parts:
        sums = np.empty((len(self.rows), 2))
        map_rows(pair_rows, len(self.rows), self.rows, self.words, self.tables, psi, sums)
        return sums

    def _quotients(self, log_psi: Amplitudes, rows: Indices) -> Amplitudes:
        values = np.empty(len(rows), dtype=np.complex128)
        map_rows(quotient_rows, len(rows), rows, self.members, self.tables, self.n_connected, log_psi, values)
        return values
