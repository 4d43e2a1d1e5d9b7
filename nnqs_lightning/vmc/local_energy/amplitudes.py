"""Amplitudes of connected determinants: each one asked of the network once a step."""

from __future__ import annotations

import torch
from torch import Tensor

from nnqs_lightning import memory
from nnqs_lightning.ansatz.base import Ansatz


class AmplitudeCache:
    """log ψ by determinant, for one set of parameters. The sampled determinants are known from the start."""

    def __init__(self, ansatz: Ansatz, determinants: Tensor, log_psi: Tensor, max_chunk: int, max_bytes: int) -> None:
        """
        Args:
            ansatz: the wave function.
            determinants: int64 [N, 2, W] whose ``log_psi``, complex128 [N], is known.
            max_chunk: determinants passed to the network at once.
            max_bytes: memory for what is added; when it is full, unknown determinants are evaluated but not kept.
        """
        from nnqs_lightning.fock.lookup import DeterminantTable

        self.ansatz = ansatz
        self.max_chunk = max_chunk
        self.n_evaluated = 0
        """Determinants that the network has seen."""
        self._new_table = DeterminantTable
        self._table = DeterminantTable(determinants)
        self._log_psi = log_psi
        # Per determinant: its words and ψ, both in buffers grown by doubling, and up to four 8-byte slots.
        entry_bytes = 2 * (8 * determinants.shape[1:].numel() + 16) + 32
        self._max_size = len(determinants) + max_bytes // entry_bytes

    def log_psi(self, determinants: Tensor) -> Tensor:
        """log ψ of each row of ``determinants`` [M, 2, W], complex128 [M]; rows may repeat."""
        position = self._table.find(determinants)
        unknown = position < 0
        distinct = self._new_table(determinants[unknown])
        evaluated = self._evaluate(distinct.rows.to(determinants.device))
        values = torch.empty(len(determinants), dtype=torch.complex128, device=determinants.device)
        values[~unknown] = self._log_psi[position[~unknown]]
        values[unknown] = evaluated[distinct.find(determinants[unknown])]
        self._keep(distinct.rows, evaluated)
        return values

    def _evaluate(self, determinants: Tensor) -> Tensor:
        self.n_evaluated += len(determinants)
        parts = memory.map_rows(self.ansatz.log_psi, determinants, self.max_chunk)
        return torch.cat(parts) if parts else self._log_psi[:0]

    def _keep(self, determinants: Tensor, log_psi: Tensor) -> None:
        size = len(self._table)
        grown = size + len(determinants)
        if grown > self._max_size:
            return
        self._table.insert(determinants)
        if grown > len(self._log_psi):
            room = self._log_psi.new_empty(max(grown, 2 * size))
            room[:size] = self._log_psi[:size]
            self._log_psi = room
        self._log_psi[size:grown] = log_psi


class SortedAmplitudeCache(AmplitudeCache):
    """The same on the device of the determinants, by sorting instead of a hash table; nothing travels to the host."""

    def __init__(self, ansatz: Ansatz, determinants: Tensor, log_psi: Tensor, max_chunk: int, max_bytes: int) -> None:
        """See :class:`AmplitudeCache`."""
        self.ansatz = ansatz
        self.max_chunk = max_chunk
        self.n_evaluated = 0
        self._known = determinants
        self._log_psi = log_psi
        entry_bytes = 8 * determinants.shape[1:].numel() + 16
        self._max_size = len(determinants) + max_bytes // entry_bytes

    def log_psi(self, determinants: Tensor) -> Tensor:
        """See :class:`AmplitudeCache`."""
        n_known = len(self._known)
        both = torch.cat([self._known, determinants])
        distinct, number = torch.unique(both.flatten(1), dim=0, return_inverse=True)
        values = torch.full((len(distinct),), torch.nan, dtype=torch.complex128, device=determinants.device)
        is_known = torch.zeros(len(distinct), dtype=torch.bool, device=determinants.device)
        values[number[:n_known]] = self._log_psi
        is_known[number[:n_known]] = True
        unknown = distinct[~is_known].view(-1, *determinants.shape[1:])
        values[~is_known] = evaluated = self._evaluate(unknown)
        if n_known + len(unknown) <= self._max_size:
            self._known = torch.cat([self._known, unknown])
            self._log_psi = torch.cat([self._log_psi, evaluated])
        return values[number[n_known:]]
