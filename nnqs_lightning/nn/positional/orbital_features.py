"""Embeddings from what orbitals are in place of where they stand. Each input speaks of two of them: the orbital whose
token it carries and the one about to be predicted."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nnqs_lightning.errors import UserError
from nnqs_lightning.nn.positional.base import PositionalScheme, PositionContext


class OrbitalFeatures(PositionalScheme):
    """x + MLP(features of the carried orbital) + MLP'(features of the predicted orbital).

    No index enters, so orbitals listed in another order but decoded alike give the same state, and a model can move
    between molecules. Features pass asinh, which keeps core energies within reach of valence ones.

    Args:
        context: what the decoder tells.
        features: which ones: ``energy`` (hartree), ``level`` (energy from the middle of the gap), ``occupation`` (α and
            β in the reference determinant), ``irrep`` (one-hot), and where the system gives them ``centroid``
            (3 numbers), ``spread`` and ``kinetic``; null for level and occupation.
        hidden: width of the MLPs.
    """

    extension = "every weight carries over; the features are those of the new system"

    def __init__(self, context: PositionContext, features: list[str] | None = None, hidden: int = 32) -> None:
        super().__init__(context)
        names = ["level", "occupation"] if features is None else features
        if not names or hidden < 1:
            raise UserError(
                f"features is {names} and hidden {hidden}, expected at least one feature and a width of at least 1: "
                "change model.ansatz.positional"
            )
        columns = torch.cat([context.feature(name).double().reshape(context.n_positions, -1) for name in names], dim=1)
        columns = columns.asinh()
        # The start token carries no orbital: a row of zeros with a flag of its own.
        carried = nn.functional.pad(columns, (1, 0, 1, 0))
        carried[0, 0] = 1.0
        self.predicted: Tensor
        self.carried: Tensor
        self.register_buffer("predicted", columns)
        self.register_buffer("carried", carried)
        self.of_predicted = _two_layers(columns.shape[1], hidden, context.d_model)
        self.of_carried = _two_layers(carried.shape[1], hidden, context.d_model)

    def embed(self, x: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
        """Add both embeddings; UserError beyond the orbitals of the system."""
        predicted, carried = self.query_orbitals(positions), self.key_orbitals(positions)
        n_orb = len(self.predicted)
        self.require_known(predicted, n_orb, f"OrbitalFeatures knows {n_orb} orbitals")
        signal = self.of_predicted(self.predicted[predicted].to(x.dtype))
        return x + signal + self.of_carried(self.carried[carried + 1].to(x.dtype))


def _two_layers(n_in: int, hidden: int, n_out: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(n_in, hidden), nn.GELU(), nn.Linear(hidden, n_out))
