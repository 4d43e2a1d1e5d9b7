"""Positions that depend on what the tokens say."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nnqs_lightning.errors import UserError
from nnqs_lightning.nn.positional.base import PositionalScheme, PositionContext


class Cope(PositionalScheme):
    """q_i · e[p_ij] / √d with p_ij = Σ_{l=j…i} σ(q_i · k_l / √d): how many keys the query counts since key j
    (Golovneva et al. 2024, 2405.18719); rows of e are interpolated linearly.

    Args:
        context: what the decoder tells.
        max_position: counts beyond share its row; null for the number of places of the system.
    """

    contextual = True
    extension = "works at any length; counts beyond the table share its last row"

    def __init__(self, context: PositionContext, max_position: int | None = None) -> None:
        super().__init__(context)
        if max_position is not None and max_position < 1:
            raise UserError(
                f"max_position is {max_position}, expected at least 1: change model.ansatz.positional.max_position"
            )
        self.max_position = max_position or context.n_positions
        self.rows = nn.Parameter(torch.zeros(self.max_position + 1, context.d_head))

    def bias(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """[N, H, Tq, Tk]; keys must come in the order of their places."""
        scaled = q * q.shape[-1] ** -0.5
        visible = k_positions[None, :] <= q_positions[:, None]
        gates = torch.sigmoid(scaled @ k.transpose(-1, -2)) * visible
        counts = gates.flip(-1).cumsum(-1).flip(-1).clamp(max=self.max_position)
        scores = scaled @ self.rows.t()
        lower = counts.floor()
        share = counts - lower
        below, above = scores.gather(-1, lower.long()), scores.gather(-1, counts.ceil().long())
        return torch.lerp(below, above, share)

    def resize(self, name: str, trained: Tensor, places: Tensor) -> Tensor:
        """Rows of trained counts; the last one for those beyond."""
        return trained[torch.arange(self.max_position + 1).clamp(max=len(trained) - 1)]
