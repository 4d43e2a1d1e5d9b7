"""Plain descent along the energy gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from nnqs_lightning.ansatz.base import Ansatz
from nnqs_lightning.fock import SampleBatch
from nnqs_lightning.optim.base import Direction
from nnqs_lightning.vmc.base import LocalEnergies
from nnqs_lightning.vmc.estimators import weighted_mean


class EnergyGradient(Direction):
    """∇E = 2 Re Σ w (E_loc − E)* ∇ log ψ, for use with AdamW, SOAP, Muon and the like.

    Exact where the local energies are exact and the weights are |ψ|². On a sampled set with renormalised weights it
    is the exact gradient of the set's Rayleigh quotient at a fixed set.
    """

    def coefficients(
        self, ansatz: Ansatz, sample: SampleBatch, energies: LocalEnergies, learning_rate: float
    ) -> tuple[Tensor, dict[str, float]]:
        """c = 2 w (E_loc − E), zero where the weight is."""
        mean = weighted_mean(energies.weights, energies.values)
        live = energies.weights > 0
        return torch.where(live, 2 * energies.weights * (energies.values - mean), 0), {}
