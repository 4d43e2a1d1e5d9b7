"""Local energies with ψ on the strongly connected states and on a random few of the others."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from nnqs_lightning.distributed import all_reduce_sum
from nnqs_lightning.errors import UserError
from nnqs_lightning.fock import SampleBatch
from nnqs_lightning.hamiltonian import MolecularHamiltonian
from nnqs_lightning.vmc.local_energy.amplitudes import AmplitudeCache
from nnqs_lightning.vmc.local_energy.exact import ExactLocalEnergy, log_ratios, ratio_sums


class ScreenedLocalEnergy(ExactLocalEnergy):
    """Unbiased estimates of the local energies of :class:`ExactLocalEnergy` with fewer evaluations of ψ.

    Every D' with |H_DD'| > ``threshold`` counts in full, the diagonal always. From the rest, ``n_draws`` draws are made
    with probability in proportion to |H_DD'|, over integrals and not over states, so that what is small is never
    enumerated: some draws (a third to three quarters of them, most at half filling) find their orbitals not free, add
    nothing and cost nothing. What that adds to the variance of the energy is the stat
    ``local_energy/screening_variance`` (hartree²). E_loc enters gradients and energies linearly, so they stay unbiased;
    the variance of E_loc does not: it grows by the noise of the draws.
    """

    def __init__(
        self,
        threshold: float = 1e-3,
        n_draws: int = 16,
        seed: int = 0,
        max_chunk: int = 4096,
        cache_bytes: int = 1 << 30,
        buffer_bytes: int = 1 << 28,
    ) -> None:
        """
        Args:
            threshold: smallest |H_DD'| in hartree that is never left to chance.
            n_draws: draws for each determinant, two at least, some of which meet no state.
            seed: of the draws, which depend on it, on the step and on the determinant alone.
            max_chunk: determinants passed to the network at once.
            cache_bytes: memory for amplitudes kept within a step.
            buffer_bytes: memory for connected states held at once.

        Raises:
            UserError: a negative threshold, fewer than two draws.
        """
        super().__init__(max_chunk, cache_bytes, buffer_bytes)
        if threshold < 0:
            raise UserError(f"threshold is {threshold}, expected 0 or more: change model.local_energy.threshold")
        if n_draws < 2:
            raise UserError(f"n_draws is {n_draws}, expected 2 at least: change model.local_energy.n_draws")
        self.threshold = threshold
        self.n_draws = n_draws
        self.seed = seed

    def chunk_energies(
        self, hamiltonian: MolecularHamiltonian, cache: AmplitudeCache, sample: SampleBatch, part: slice
    ) -> tuple[Tensor, dict[str, float]]:
        """See :meth:`ExactLocalEnergy.chunk_energies`."""
        determinants, log_psi = sample.determinants[part], sample.log_psi[part]
        key = int(np.random.SeedSequence((self.seed, sample.step)).generate_state(1, np.uint64)[0])
        connected, is_drawn = hamiltonian.drawn_states(determinants, self.threshold, self.n_draws, key)
        exponent = log_ratios(connected, cache.log_psi(connected.determinants), log_psi)
        # The elements of draws are those of their mean: of a single draw they are n_draws times as large.
        draws = self.n_draws * connected.elements[is_drawn] * torch.exp(exponent[is_drawn])
        rows = connected.rows[is_drawn]
        mean = torch.zeros_like(log_psi).index_add_(0, rows, draws) / self.n_draws
        # Draws that met no state are zeros.
        squares = torch.zeros_like(log_psi.real).index_add_(0, rows, draws.abs().square())
        squares = (squares - self.n_draws * mean.abs().square()).clamp(min=0)
        variance = squares / (self.n_draws * (self.n_draws - 1))
        stats = {
            "local_energy/connected": float(len(connected.elements)),
            "local_energy/screening_variance": float((sample.weights[part].square() * variance).sum()),
        }
        return ratio_sums(connected, exponent), stats

    def is_variational(self, sample: SampleBatch, log_psi: Tensor) -> bool:
        """Never: the draws scatter the energy to both sides."""
        return False

    def reduced(self, stats: dict[str, float]) -> dict[str, float]:
        """The variance over all ranks; counts stay this rank's."""
        key = "local_energy/screening_variance"
        total = all_reduce_sum(torch.tensor(stats.get(key, 0.0), dtype=torch.float64))
        return {**stats, key: float(total)}
