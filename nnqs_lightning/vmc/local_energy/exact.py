"""Local energies with ψ evaluated on every connected state."""

from __future__ import annotations

import torch
from torch import Tensor

from nnqs_lightning.ansatz.base import Ansatz
from nnqs_lightning.distributed import all_gather_rows
from nnqs_lightning.errors import UserError
from nnqs_lightning.fock import SampleBatch
from nnqs_lightning.hamiltonian import ConnectedStates, MolecularHamiltonian
from nnqs_lightning.vmc.base import LocalEnergies, LocalEnergy
from nnqs_lightning.vmc.local_energy.amplitudes import AmplitudeCache


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
            UserError: ``max_chunk`` below one, or at evaluation a buffer that cannot hold one determinant's states.
        """
        if max_chunk < 1:
            raise UserError(f"max_chunk is {max_chunk}, expected at least 1: change model.local_energy.max_chunk")
        self.max_chunk = max_chunk
        self.cache_bytes = cache_bytes
        self.buffer_bytes = buffer_bytes

    @torch.no_grad()
    def evaluate(self, hamiltonian: MolecularHamiltonian, ansatz: Ansatz, sample: SampleBatch) -> LocalEnergies:
        """See :class:`LocalEnergy`."""
        determinants, _ = all_gather_rows(sample.determinants)
        log_psi, _ = all_gather_rows(sample.log_psi)
        cache = AmplitudeCache(ansatz, determinants, log_psi, self.max_chunk, self.cache_bytes)
        chunk = self.rows_at_once(hamiltonian)
        values = torch.empty(len(sample), dtype=torch.complex128, device=sample.log_psi.device)
        n_states = 0
        for start in range(0, len(sample), chunk):
            part = slice(start, start + chunk)
            values[part], n_part = self._chunk_energies(
                hamiltonian, cache, sample.determinants[part], sample.log_psi[part]
            )
            n_states += n_part
        is_whole = sample.counts is None and abs(float(torch.exp(2 * log_psi.real).sum()) - 1) < 1e-9
        return LocalEnergies(
            values=values,
            weights=sample.weights,
            variational=is_whole,
            stats={"local_energy/connected": float(n_states), "local_energy/evaluated": float(cache.n_evaluated)},
            diagonal=hamiltonian.diagonal(sample.determinants),
        )

    def rows_at_once(self, hamiltonian: MolecularHamiltonian) -> int:
        """How many determinants' connected states fit into ``buffer_bytes``."""
        words = hamiltonian.sector.aufbau().numel()
        # Words twice (padded and compacted), element, row, position, complex amplitude.
        row_bytes = hamiltonian.n_connected * (16 * words + 8 + 8 + 8 + 16)
        if row_bytes > self.buffer_bytes:
            raise UserError(
                f"buffer_bytes is {self.buffer_bytes}, but the connected states of one determinant take {row_bytes}: "
                "raise model.local_energy.buffer_bytes"
            )
        return self.buffer_bytes // row_bytes

    def _chunk_energies(
        self, hamiltonian: MolecularHamiltonian, cache: AmplitudeCache, determinants: Tensor, log_psi: Tensor
    ) -> tuple[Tensor, int]:
        connected = hamiltonian.connected_states(determinants)
        amplitudes = cache.log_psi(connected.determinants)
        return ratio_sums(connected, amplitudes, log_psi), len(connected.elements)


def ratio_sums(connected: ConnectedStates, log_psi_connected: Tensor, log_psi: Tensor) -> Tensor:
    """Σ_D' H_DD' ψ(D') / ψ(D) for each row, complex128 [N], from logarithms of ψ.

    Quotients are taken relative to the largest one of their row, so that neither ψ underflows; the sum itself is
    capped at e^700 in modulus.
    """
    exponent = log_psi_connected - log_psi[connected.rows]
    largest = exponent.real.new_full(log_psi.shape, -torch.inf)
    largest = largest.scatter_reduce(0, connected.rows, exponent.real, reduce="amax")
    magnitude = torch.exp(exponent.real - largest[connected.rows])
    ratio = torch.where(magnitude > 0, torch.polar(magnitude, exponent.imag), 0)
    sums = torch.zeros_like(log_psi).index_add_(0, connected.rows, connected.elements * ratio)
    return sums * torch.exp(largest.clamp(max=700.0))
