"""Local energies with ψ evaluated on every connected state."""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor

from nnqs_lightning.ansatz.base import Ansatz
from nnqs_lightning.distributed import all_gather_rows
from nnqs_lightning.errors import UserError
from nnqs_lightning.fock import SampleBatch
from nnqs_lightning.hamiltonian import ConnectedStates, MolecularHamiltonian
from nnqs_lightning.vmc.base import LocalEnergies, LocalEnergy, check_basis
from nnqs_lightning.vmc.local_energy.amplitudes import AmplitudeCache, SortedAmplitudeCache

LOG_CAP = 690.0
"""Quotients beyond e^LOG_CAP are cut there: a row of them, times elements of H, is still finite."""


class ExactLocalEnergy(LocalEnergy):
    """E_loc(D) = Σ_D' H_DD' ψ(D') / ψ(D) over every D' in the sector.

    An unbiased estimate of ⟨ψ|H|ψ⟩ under the sampler's weights (walkers on D over all walkers), with a statistical
    error; a single estimate may lie below the ground state. Where the sampler enumerates the whole sector with weights
    |ψ|², the energy is exact and variational. Each distinct connected determinant meets the network once a step:
    the sampled ones never, for their amplitudes are known.
    """

    def __init__(self, max_chunk: int = 4096, cache_bytes: int = 1 << 30, buffer_bytes: int = 1 << 28) -> None:
        """
        Args:
            max_chunk: determinants passed to the network at once.
            cache_bytes: memory for amplitudes kept within a step; beyond it, they are evaluated again when met again.
            buffer_bytes: memory for connected states held at once; at least one determinant's worth.

        Raises:
            UserError: ``max_chunk`` below one, negative ``cache_bytes``, or at evaluation a buffer that cannot hold one
                determinant's states.
        """
        if max_chunk < 1:
            raise UserError(f"max_chunk is {max_chunk}, expected at least 1: change model.local_energy.max_chunk")
        if cache_bytes < 0:
            raise UserError(f"cache_bytes is {cache_bytes}, expected 0 or more: change model.local_energy.cache_bytes")
        self.max_chunk = max_chunk
        self.cache_bytes = cache_bytes
        self.buffer_bytes = buffer_bytes

    @torch.no_grad()
    def evaluate(self, hamiltonian: MolecularHamiltonian, ansatz: Ansatz, sample: SampleBatch) -> LocalEnergies:
        """See :class:`LocalEnergy`."""
        check_basis(hamiltonian, ansatz)
        determinants, _ = all_gather_rows(sample.determinants)
        log_psi, _ = all_gather_rows(sample.log_psi)
        cache_type = SortedAmplitudeCache if determinants.is_cuda else AmplitudeCache
        cache = cache_type(ansatz, determinants, log_psi, self.max_chunk, self.cache_bytes)
        chunk = self.rows_at_once(hamiltonian)
        values = torch.empty(len(sample), dtype=torch.complex128, device=sample.log_psi.device)
        totals: Counter[str] = Counter()
        for start in range(0, len(sample), chunk):
            part = slice(start, start + chunk)
            values[part], stats = self.chunk_energies(hamiltonian, cache, sample, part)
            totals.update(stats)
        return LocalEnergies(
            values=values,
            weights=sample.weights,
            variational=self.is_variational(sample, log_psi),
            stats=self.reduced({**totals, "local_energy/evaluated": float(cache.n_evaluated)}),
            diagonal=hamiltonian.diagonal(sample.determinants),
        )

    def is_variational(self, sample: SampleBatch, log_psi: Tensor) -> bool:
        """Whether the set, with ``log_psi`` over all ranks, is the whole state and weighted by |ψ|²."""
        return sample.counts is None and abs(float(torch.exp(2 * log_psi.real).sum()) - 1) < 1e-9

    def reduced(self, stats: dict[str, float]) -> dict[str, float]:
        """Figures for the log; collective where a subclass needs those of all ranks."""
        return stats

    def rows_at_once(self, hamiltonian: MolecularHamiltonian) -> int:
        """How many determinants' connected states fit into ``buffer_bytes``."""
        words = hamiltonian.sector.aufbau().numel()
        # Words twice (as found and packed), element, row, position, complex amplitude.
        row_bytes = hamiltonian.n_connected * (16 * words + 8 + 8 + 8 + 16)
        if row_bytes > self.buffer_bytes:
            raise UserError(
                f"buffer_bytes is {self.buffer_bytes}, but the connected states of one determinant take {row_bytes}: "
                "raise model.local_energy.buffer_bytes"
            )
        return self.buffer_bytes // row_bytes

    def chunk_energies(
        self, hamiltonian: MolecularHamiltonian, cache: AmplitudeCache, sample: SampleBatch, part: slice
    ) -> tuple[Tensor, dict[str, float]]:
        """Local energies of ``part`` of this rank's sample, and figures that add up over the parts."""
        connected = hamiltonian.connected_states(sample.determinants[part])
        exponent = log_ratios(connected, cache.log_psi(connected.determinants), sample.log_psi[part])
        return ratio_sums(connected, exponent), {"local_energy/connected": float(len(connected.elements))}


def log_ratios(connected: ConnectedStates, log_psi_connected: Tensor, log_psi: Tensor) -> Tensor:
    """log ψ(D') − log ψ(D) of every entry, complex128 [M]; −inf where ψ(D') vanishes, its modulus capped."""
    exponent = log_psi_connected - log_psi[connected.rows]
    vanishes = exponent.real == -torch.inf
    return torch.complex(exponent.real.clamp(max=LOG_CAP), exponent.imag.masked_fill(vanishes, 0.0))


def ratio_sums(connected: ConnectedStates, log_ratios: Tensor) -> Tensor:
    """Σ_D' H_DD' ψ(D') / ψ(D) for each row, complex128 [N]."""
    n_rows = len(connected.offsets) - 1
    sums = torch.zeros(n_rows, dtype=torch.complex128, device=log_ratios.device)
    return sums.index_add_(0, connected.rows, connected.elements * torch.exp(log_ratios))
