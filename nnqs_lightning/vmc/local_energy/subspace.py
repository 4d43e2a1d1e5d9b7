"""Local energies within the sampled set."""

from __future__ import annotations

from enum import Enum

import torch
from torch import Tensor

from nnqs_lightning.ansatz.base import Ansatz
from nnqs_lightning.distributed import all_gather_rows, all_reduce_max, all_reduce_sum, rank
from nnqs_lightning.fock import SampleBatch
from nnqs_lightning.hamiltonian import MolecularHamiltonian, Strategy
from nnqs_lightning.vmc.base import LocalEnergies, LocalEnergy, check_basis


class SubspaceWeights(str, Enum):
    """How the determinants of the set are weighted."""

    amplitudes = "amplitudes"
    """|ψ|² renormalised over the set: Σ w E_loc is the Rayleigh quotient of ψ cut off outside the set."""
    walkers = "walkers"
    """The sampler's own weights: follows the walkers, but may lie below the ground state."""


class SubspaceLocalEnergy(LocalEnergy):
    """E_loc(D) = Σ_{D' in S} H_DD' ψ(D') / ψ(D), S the determinants sampled by all ranks together.

    The network is not evaluated at all. With weights |ψ|² renormalised over S, the energy is ⟨ψ_S|H|ψ_S⟩ / ⟨ψ_S|ψ_S⟩
    of the projected state ψ_S: variational, without statistical error given S, and above the energy of ψ by what was
    never sampled. Its gradient moves amplitudes within S alone: what is not sampled does not grow.
    """

    def __init__(
        self,
        weights: SubspaceWeights = SubspaceWeights.amplitudes,
        strategy: Strategy = Strategy.auto,
        show_costs: bool = False,
    ) -> None:
        """
        Args:
            weights: ``amplitudes`` for a variational energy, ``walkers`` for the sampler's counts (not variational).
            strategy: how connected members of the set are found; ``auto`` takes the cheapest by a cost model.
            show_costs: print what the cost model expects of every strategy, at each evaluation.
        """
        self.show_costs = show_costs
        self.weights = weights
        self.strategy = strategy

    @torch.no_grad()
    def evaluate(self, hamiltonian: MolecularHamiltonian, ansatz: Ansatz, sample: SampleBatch) -> LocalEnergies:
        """See :class:`LocalEnergy`."""
        check_basis(hamiltonian, ansatz)
        determinants, offset = all_gather_rows(sample.determinants)
        log_psi, _ = all_gather_rows(sample.log_psi)
        mine = torch.arange(offset, offset + len(sample), device=determinants.device)
        if self.show_costs and rank() == 0:
            costs = hamiltonian.strategy_costs(determinants)
            expected = ", ".join(f"{strategy.value} {cost:.2g} s" for strategy, cost in costs.items())
            print(f"local energies of {len(determinants)} determinants: {expected}")
        values, stats = self.values(hamiltonian, determinants, log_psi, mine)
        variational = self.weights is SubspaceWeights.amplitudes
        return LocalEnergies(
            values=values,
            weights=born_weights(sample.log_psi) if variational else sample.weights,
            variational=variational,
            stats={"local_energy/set_size": float(len(determinants)), **stats},
            diagonal=hamiltonian.diagonal(sample.determinants),
        )

    def values(
        self, hamiltonian: MolecularHamiltonian, determinants: Tensor, log_psi: Tensor, rows: Tensor
    ) -> tuple[Tensor, dict[str, float]]:
        """Local energies of the determinants at positions ``rows`` of the whole set, and figures for the log."""
        return hamiltonian.local_energies(determinants, log_psi, rows, self.strategy), {}


def born_weights(log_psi: Tensor) -> Tensor:
    """|ψ|² renormalised over the determinants of all ranks, float64 [N]; collective."""
    log_p = 2 * log_psi.real
    largest = all_reduce_max(log_p.max() if len(log_p) else log_p.new_tensor(-torch.inf))
    shares = torch.exp(log_p - largest)
    return shares / all_reduce_sum(shares.sum())
