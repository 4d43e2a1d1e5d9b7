"""Biases that are smooth, learned functions of the distance, made to hold beyond the trained length."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from nnqs_lightning.errors import UserError
from nnqs_lightning.nn.positional.base import PositionalScheme, PositionContext
from nnqs_lightning.nn.positional.bias import DistanceBias, index_distance


class Kerple(DistanceBias):
    """−r_h log(1 + s_h · distance) or −r_h · distance^s_h with learned r_h, s_h > 0 (Chi et al. 2022, 2205.09921).

    Args:
        context: what the decoder tells.
        kernel: ``log``, or ``power`` with exponents below 2.
    """

    extension = "works at any length"

    def __init__(self, context: PositionContext, kernel: Literal["log", "power"] = "log") -> None:
        super().__init__(context)
        self.kernel = kernel
        # The paper draws r from (0, 2) and s from (0, 1) at the start; positive throughout by r = e^a, s likewise.
        self.log_strength = nn.Parameter(torch.log(2 * torch.rand(context.n_heads).clamp(min=1e-2)))
        self.shape = nn.Parameter(torch.log(torch.rand(context.n_heads).clamp(min=1e-2)))

    def score(self, distance: Tensor) -> Tensor:
        """The kernel's logarithm."""
        strength, shape = self.log_strength.exp()[:, None, None], self.shape[:, None, None]
        if self.kernel == "log":
            return -strength * torch.log1p(shape.exp() * distance)
        # Zero distance is kept out of the power, whose derivative by the exponent is 0 · log 0 there.
        power = distance.clamp(min=1e-30).to(shape.dtype) ** (2 * torch.sigmoid(shape))
        return -strength * torch.where(distance > 0, power, 0.0)


class Fire(PositionalScheme):
    """f_h(ψ(distance) / ψ(max(n, threshold))), ψ(x) = log(1 + |c| x), f an MLP (Li et al. 2023, 2310.04418).

    n is the number of tokens before the query. The ratio stays within 0 … 1 at any length.

    Args:
        context: what the decoder tells.
        hidden: width of the MLP.
        c: start value of c.
        threshold: start value of the learned length below which no ratio is stretched; null for that of the system.
    """

    extension = "works at any length: distances count relative to the tokens so far"

    def __init__(
        self, context: PositionContext, hidden: int = 32, c: float = 0.1, threshold: float | None = None
    ) -> None:
        super().__init__(context)
        if hidden < 1:
            raise UserError(f"hidden is {hidden}, expected at least 1: change model.ansatz.positional.hidden")
        # No bias at the end: the softmax over keys would cancel it.
        last = nn.Linear(hidden, context.n_heads, bias=False)
        self.network = nn.Sequential(nn.Linear(1, hidden), nn.ReLU(), last)
        self.c = nn.Parameter(torch.tensor(c))
        self.threshold = nn.Parameter(torch.tensor(float(threshold or context.n_positions)))

    def bias(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """[H, Tq, Tk]."""
        count = self.query_orbitals(q_positions).to(self.c.dtype)
        reach = torch.maximum(count, self.threshold.abs())
        ratio = self._log(index_distance(q_positions, k_positions)) / self._log(reach)[:, None]
        return self.network(ratio.unsqueeze(-1)).permute(2, 0, 1)

    def _log(self, x: Tensor) -> Tensor:
        return torch.log1p(self.c.abs() * x)
