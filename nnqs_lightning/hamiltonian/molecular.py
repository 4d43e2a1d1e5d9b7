"""The electronic Hamiltonian of a molecule on packed determinants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from math import comb
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nnqs_lightning.chem.integrals import Array, MolecularIntegrals
from nnqs_lightning.errors import UserError
from nnqs_lightning.fock import Sector, n_words
from nnqs_lightning.hamiltonian.strategy import Strategy

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

    from nnqs_lightning.hamiltonian.device import DeviceTables
    from nnqs_lightning.hamiltonian.screening import SortedDoubles
    from nnqs_lightning.hamiltonian.slater_condon import Tables
    from nnqs_lightning.hamiltonian.subspace import Subspace

# The kernels are imported where they are first needed: numba takes as long to import as a short command takes to run.


@dataclass(frozen=True)
class ConnectedStates:
    """The rows of H for some determinants D_0 … D_{N−1}, one after the other."""

    determinants: Tensor
    """int64 [M, 2, W]: D' with H_DD' ≠ 0, D itself first in its row."""
    elements: Tensor
    """float64 [M]: ⟨D|H|D'⟩, e_core on the diagonal."""
    offsets: Tensor
    """int64 [N + 1]: row n is ``offsets[n] : offsets[n + 1]``."""

    @property
    def rows(self) -> Tensor:
        """int64 [M]: the n to which each entry belongs."""
        lengths = self.offsets.diff()
        return torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths)


class MolecularHamiltonian:
    """H on the determinants of one sector. Methods take int64 determinants [N, 2, W] and answer on their device.

    Raises:
        UserError: complex integrals.
    """

    def __init__(self, integrals: MolecularIntegrals) -> None:
        if np.iscomplexobj(integrals.h1e) or np.iscomplexobj(integrals.eri):
            raise UserError("the integrals are complex, expected those of real orbitals: change model.system")
        self.integrals = integrals
        self.sector = Sector(integrals.n_orb, integrals.n_alpha, integrals.n_beta)
        self._device_tables: DeviceTables | None = None

    @property
    def n_connected(self) -> int:
        """Determinants within a double excitation of any one, itself included."""
        n, n_alpha, n_beta = self.sector.n_orb, self.sector.n_alpha, self.sector.n_beta
        singles = [n_alpha * (n - n_alpha), n_beta * (n - n_beta)]
        doubles = [comb(n_alpha, 2) * comb(n - n_alpha, 2), comb(n_beta, 2) * comb(n - n_beta, 2)]
        return 1 + sum(singles) + sum(doubles) + singles[0] * singles[1]

    @cached_property
    def tables(self) -> Tables:
        """The integrals as the compiled kernels read them."""
        from nnqs_lightning.hamiltonian.slater_condon import tables

        return tables(self.integrals)

    def diagonal(self, determinants: Tensor) -> Tensor:
        """⟨D|H|D⟩, float64 [N], e_core included."""
        from nnqs_lightning.fock.compiled import map_rows
        from nnqs_lightning.hamiltonian.slater_condon import diagonal_rows

        if determinants.is_cuda:
            from nnqs_lightning.hamiltonian import device

            return device.diagonal(self._tables_on(determinants.device), determinants)
        words = self.words(determinants)
        values = np.empty(len(words))
        map_rows(diagonal_rows, len(words), words, self.tables, values)
        return torch.from_numpy(values).to(determinants.device)

    def matrix_elements(self, bra: Tensor, ket: Tensor) -> Tensor:
        """⟨bra_n|H|ket_n⟩, float64 [N], of pairs of determinants."""
        from nnqs_lightning.fock.compiled import map_rows
        from nnqs_lightning.hamiltonian.slater_condon import matrix_element_rows

        if ket.is_cuda:
            from nnqs_lightning.hamiltonian import device

            return device.matrix_elements(self._tables_on(ket.device), bra, ket)
        left, right = self.words(bra), self.words(ket)
        if left.shape != right.shape:
            raise UserError(f"bra has shape {tuple(bra.shape)} and ket {tuple(ket.shape)}, expected equal shapes")
        values = np.empty(len(left))
        map_rows(matrix_element_rows, len(left), left, right, self.tables, values)
        return torch.from_numpy(values).to(ket.device)

    @cached_property
    def sorted_doubles(self) -> SortedDoubles:
        """The integrals of doubles as screening reads them, largest first."""
        from nnqs_lightning.hamiltonian.screening import sorted_doubles

        return sorted_doubles(self.tables)

    def connected_states(self, determinants: Tensor, threshold: float = 0.0) -> ConnectedStates:
        """Every D' with |⟨D|H|D'⟩| > ``threshold``; the diagonal is always there.

        With a positive threshold, doubles below it are not even visited. Pass a large set in pieces.
        """
        from nnqs_lightning.fock.compiled import map_rows
        from nnqs_lightning.hamiltonian.connected import connect_rows

        if determinants.is_cuda:
            return self._device_states(determinants, threshold)
        if threshold > 0:
            return self.drawn_states(determinants, threshold, n_draws=0, seed=0)[0]
        words = self.words(determinants)
        states, elements, _, counts = self._room(len(words), self.n_connected)
        filled = map_rows(
            connect_rows, len(words), words, self.tables, threshold, self.n_connected, states, elements, counts
        )
        return connected_states(packed(states, filled), packed(elements, filled), counts, determinants.device)

    def drawn_states(
        self, determinants: Tensor, threshold: float, n_draws: int, seed: int
    ) -> tuple[ConnectedStates, Tensor]:
        """Every D' with |⟨D|H|D'⟩| > ``threshold``, and ``n_draws`` draws from the rest in proportion to |⟨D|H|D'⟩|.

        A drawn one carries the element sign(H) W / n_draws, W being the sum of |H| over all that may be drawn, so that
        Σ_D' element · ψ(D') is an unbiased estimate of the whole sum (the idea of heat-bath sampling; Holmes, Changlani
        and Umrigar, J. Chem. Theory Comput. 12, 1561 (2016)). Draws are made without looking at what is below the
        threshold: one that hits an occupied (or doubly emptied) orbital stands for nothing and leaves no state. Draws
        depend on ``seed`` and on D alone.

        Returns:
            The states, and which of them were drawn, bool [M]; those come last in their rows and may repeat.
        """
        from nnqs_lightning.fock.compiled import map_rows
        from nnqs_lightning.hamiltonian.screening import screened_rows

        words = self.words(determinants)
        # One place more, for what is written and not kept.
        width = self.n_connected + n_draws + 1
        states, elements, is_drawn, counts = self._room(len(words), width)
        filled = map_rows(
            screened_rows, len(words), words, self.tables, self.sorted_doubles, threshold, n_draws, np.uint64(seed),
            width, states, elements, is_drawn, counts,
        )  # fmt: skip
        connected = connected_states(packed(states, filled), packed(elements, filled), counts, determinants.device)
        return connected, torch.from_numpy(packed(is_drawn, filled)).to(determinants.device)

    def _room(self, n: int, width: int) -> tuple[NDArray[np.uint64], Array, NDArray[np.bool_], NDArray[np.int64]]:
        """Arrays for ``width`` connected states of each of ``n`` determinants; what is not written takes no memory."""
        return (
            np.empty((n * width, 2, n_words(self.sector.n_orb)), dtype=np.uint64),
            np.empty(n * width),
            np.empty(n * width, dtype=np.bool_),
            np.empty(n, dtype=np.int64),
        )

    def sparse(self, determinants: Tensor) -> csr_matrix:
        """H within a set of distinct determinants, [N, N], columns rising in each row, e_core on the diagonal."""
        from scipy.sparse import csr_matrix

        everything = np.arange(len(self.words(determinants)))
        subspace = self.subspace(determinants, everything)
        rows, columns = subspace.pattern(everything, everything)
        matrix = csr_matrix((subspace.elements(rows, columns), (rows, columns)), shape=(len(everything),) * 2)
        matrix.sort_indices()
        return matrix

    def dense(self, determinants: Tensor) -> Tensor:
        """H within a set of distinct determinants, float64 [N, N]."""
        return torch.from_numpy(self.sparse(determinants).toarray()).to(determinants.device)

    def local_energies(
        self,
        determinants: Tensor,
        log_psi: Tensor,
        rows: Tensor | None = None,
        strategy: Strategy = Strategy.auto,
        contract: Callable[[NDArray[np.complex128]], NDArray[np.complex128]] | None = None,
    ) -> Tensor:
        """Σ_D' H_DD' ψ(D') / ψ(D) with D' within the set ``determinants``.

        Tensors on a GPU are summed there by a scan of all pairs, unless a strategy or ``contract`` is given.

        Args:
            determinants: [N, 2, W], distinct.
            log_psi: complex128 [N]; a state that does not occur has a real part of −inf.
            rows: int64 [M] positions of the D in the set; all of them by default. Their ψ must not vanish.
            strategy: how connected members are found; all agree but for rounding.
            contract: sums H ψ for the rows, given ψ up to a factor, instead of any strategy.

        Returns:
            complex128 [M], hartree, e_core included. Finite even where amplitudes underflow.
        """
        if determinants.is_cuda and strategy is Strategy.auto and contract is None:
            return self._device_energies(determinants, log_psi, rows)
        wanted = np.arange(len(self.words(determinants))) if rows is None else rows.cpu().numpy()
        subspace = self.subspace(determinants, wanted)
        logs = log_psi.detach().to("cpu", torch.complex128).numpy()
        values = subspace.local_energies(logs, contract or partial(subspace.contract, strategy=strategy))
        return torch.from_numpy(values).to(determinants.device)

    def _device_energies(self, determinants: Tensor, log_psi: Tensor, rows: Tensor | None) -> Tensor:
        from nnqs_lightning.hamiltonian import device

        if rows is None:
            rows = torch.arange(len(determinants), device=determinants.device)
        tables = self._tables_on(determinants.device)
        return device.local_energies(tables, determinants, log_psi.detach().to(torch.complex128), rows)

    def _device_states(self, determinants: Tensor, threshold: float) -> ConnectedStates:
        from nnqs_lightning.hamiltonian import device

        states, elements, counts = [determinants[:0]], [], []
        for rows in determinants.split(max(1, device.MAX_STATES // self.n_connected)):
            found, values = device.connected_states(self._tables_on(determinants.device), self.sector, rows)
            kept = values.abs() > threshold
            kept[:, 0] = True
            states.append(found[kept])
            elements.append(values[kept])
            counts.append(kept.sum(1))
        offsets = torch.nn.functional.pad(torch.cat(counts).cumsum(0), (1, 0))
        return ConnectedStates(torch.cat(states), torch.cat(elements), offsets)

    def _tables_on(self, where: torch.device) -> DeviceTables:
        from nnqs_lightning.hamiltonian import device

        if self._device_tables is None or self._device_tables.h1e.device != where:
            self._device_tables = device.DeviceTables.on(where, self.tables)
        return self._device_tables

    def strategy_costs(self, determinants: Tensor) -> dict[Strategy, float]:
        """Expected seconds of every strategy for all rows of a set, on one core; ``auto`` takes the least."""
        return self.subspace(determinants, np.arange(len(self.words(determinants)))).work().seconds()

    def subspace(self, determinants: Tensor, rows: NDArray[np.int64]) -> Subspace:
        """The set ``determinants`` [N, 2, W], of whose rows of H those at the positions ``rows`` are wanted."""
        from nnqs_lightning.hamiltonian.subspace import Subspace

        return Subspace(self.sector, self.tables, self.n_connected, determinants.cpu(), rows)

    def words(self, determinants: Tensor) -> NDArray[np.uint64]:
        """The determinants as the kernels read them, uint64 [N, 2, W] in host memory."""
        from nnqs_lightning.fock.lookup import as_words

        expected = (2, n_words(self.sector.n_orb))
        if determinants.dtype != torch.int64 or determinants.shape[1:] != expected:
            raise UserError(
                f"determinants are {determinants.dtype} {tuple(determinants.shape)}, expected torch.int64 "
                f"(N, {expected[0]}, {expected[1]}) for {self.sector.n_orb} orbitals"
            )
        return as_words(determinants)


def packed(array: NDArray[Any], filled: list[tuple[int, int]]) -> NDArray[Any]:
    """The parts of ``array`` that lie between the given places, one after the other."""
    parts = [array[start:stop] for start, stop in filled]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def connected_states(
    states: NDArray[np.uint64], elements: Array, counts: NDArray[np.int64], device: torch.device
) -> ConnectedStates:
    """What kernels found, as tensors on ``device``."""
    return ConnectedStates(
        determinants=torch.from_numpy(states.view(np.int64)).to(device),
        elements=torch.from_numpy(elements).to(device),
        offsets=torch.from_numpy(np.concatenate([[0], np.cumsum(counts)])).to(device),
    )
