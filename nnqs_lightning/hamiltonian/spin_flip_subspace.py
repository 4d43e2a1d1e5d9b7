"""H within a set of combinations of one spin parity."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from nnqs_lightning.chem.integrals import Array
from nnqs_lightning.fock import Sector, popcount
from nnqs_lightning.fock.spin_flip import expand, is_open_shell, multiplicities
from nnqs_lightning.hamiltonian.slater_condon import Tables
from nnqs_lightning.hamiltonian.strategy import Strategy, Work
from nnqs_lightning.hamiltonian.strings import Indices
from nnqs_lightning.hamiltonian.subspace import Amplitudes, Subspace


class SpinFlipSubspace(Subspace):
    """A set of representatives; what is computed is computed for them, among all determinants that they stand for.

    So local energies take half the rows of the set of all those determinants, and all its columns.
    """

    def __init__(self, sector: Sector, tables: Tables, n_connected: int, determinants: Tensor, rows: Indices) -> None:
        super().__init__(sector, tables, n_connected, determinants, rows)
        whole = expand(determinants, sector.spin_parity)
        self.whole = Subspace(sector, tables, n_connected, whole.determinants, rows)
        self.member, self.share = whole.member.numpy(), whole.share.numpy()
        self.is_open = is_open_shell(determinants).numpy()
        self.root = multiplicities(determinants).sqrt().numpy()
        """[N]: g, the root of the number of determinants in each combination."""
        self.mirror = np.arange(len(determinants))
        """[N]: position of the flipped determinant in the whole set, of closed shells their own."""
        self.mirror[self.is_open] = np.arange(len(determinants), len(self.member))

    def contract(self, psi: Amplitudes, strategy: Strategy) -> Amplitudes:
        """See :class:`Subspace`."""
        return self.root[self.rows] * self.whole.contract(self.share * psi[self.member], strategy)

    def work(self) -> Work:
        """See :class:`Subspace`."""
        return self.whole.work()

    def pattern(self, targets: Indices, sources: Indices) -> tuple[Indices, Indices]:
        """See :class:`Subspace`; sorted by targets, then sources."""
        mirrored = self.mirror[sources[self.is_open[sources]]]
        rows, columns = self.whole.pattern(targets, np.concatenate([sources, mirrored]))
        pairs = np.unique(rows * len(self.words) + self.member[columns])
        return pairs // len(self.words), pairs % len(self.words)

    def elements(self, rows: Indices, columns: Indices) -> Array:
        """See :class:`Subspace`."""
        values = self._connected_elements(rows, columns)
        opened = self.is_open[columns]
        values[opened] += self.sector.spin_parity * self._connected_elements(rows[opened], self.mirror[columns[opened]])
        return values * self.root[rows] / self.root[columns]

    def _connected_elements(self, rows: Indices, columns: Indices) -> Array:
        """Elements between determinants, zero for pairs that differ in more than two orbitals."""
        words = self.whole.determinants
        near = (popcount(words[rows] ^ words[columns]).sum((1, 2)) <= 4).numpy()
        values = np.zeros(len(rows))
        values[near] = self.whole.elements(rows[near], columns[near])
        return values

    def _quotients(self, log_psi: Amplitudes, rows: Indices) -> Amplitudes:
        return self.whole._quotients(log_psi[self.member] + np.log(self.share.astype(complex)), rows)
