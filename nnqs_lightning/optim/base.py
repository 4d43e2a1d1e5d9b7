"""The contract of a descent direction: the type behind the config key ``model.direction``.

Every direction is one backward pass of Σ_i Re(c_i* log ψ_i): the energy gradient and the natural gradient differ in
the coefficients c alone. So each works with any optimiser and under any strategy (DDP, DeepSpeed at every stage).
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor, nn

from nnqs_lightning.ansatz.base import Ansatz
from nnqs_lightning.fock import SampleBatch
from nnqs_lightning.vmc.base import LocalEnergies


class Direction(nn.Module):
    """Chooses the coefficients c. A module, so that its buffers (momentum, shifts) travel with the checkpoint."""

    @abstractmethod
    def coefficients(
        self, ansatz: Ansatz, sample: SampleBatch, energies: LocalEnergies, learning_rate: float
    ) -> tuple[Tensor, dict[str, float]]:
        """Coefficients for this rank's determinants; collective: every rank calls it.

        Args:
            ansatz: the wave function, at the parameters that drew ``sample``.
            sample: N determinants of this rank.
            energies: their local energies and weights.
            learning_rate: the optimiser's, so that a trust region bounds the step that will be made.

        Returns:
            complex128 [N] and ``direction/quantity`` figures for the log. ∇_θ Σ_i Re(c_i* log ψ_i), summed over the
            ranks, is handed to the optimiser, which descends along it.
        """

    def observe_gradient(self, gradients: list[Tensor]) -> None:
        """Called between the backward pass and the step with the full gradient of each parameter of the ansatz."""

    @staticmethod
    def surrogate(coefficients: Tensor, log_psi: Tensor) -> Tensor:
        """Σ_i Re(c_i* log ψ_i), float64 scalar; terms with c_i = 0 drop out even where log ψ is −inf."""
        live = coefficients != 0
        return torch.where(live, (coefficients.conj() * torch.where(live, log_psi, 0)).real, 0.0).sum()
