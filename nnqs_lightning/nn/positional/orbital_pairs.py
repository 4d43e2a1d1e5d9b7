"""Biases from what is known of orbital pairs. A query stands for the orbital about to be predicted, a key for the
orbital whose token it carries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from nnqs_lightning.errors import UserError
from nnqs_lightning.nn.positional.base import PositionalScheme, PositionContext

PairSource = Literal["exchange", "coulomb", "one_electron", "mutual_information"]
Transform = Literal["linear", "sqrt", "log"]
LOG_FLOOR = 1e-3
"""Share of the strongest pair at which ``log`` turns from linear to logarithmic."""


def pair_strengths(matrix: Tensor, transform: Transform = "linear") -> Tensor:
    """f(|M_pq| / max) in 0 … 1, zero on the diagonal: float64 [L, L] → the same.

    ``log``: f(x) = log(1 + x/ε) / log(1 + 1/ε) with ε = 1e-3, which tells weak pairs apart.
    """
    magnitudes = matrix.abs().double()
    magnitudes = magnitudes - torch.diag(magnitudes.diagonal())
    strongest = magnitudes.max()
    shares = magnitudes / strongest if strongest > 0 else magnitudes
    if transform == "sqrt":
        return shares.sqrt()
    if transform == "log":
        return torch.log1p(shares / LOG_FLOOR) / torch.log1p(torch.tensor(1 / LOG_FLOOR, dtype=torch.float64))
    return shares


def with_start(matrix: Tensor, value: float = 0.0) -> Tensor:
    """A column for the start token put before those of the orbitals: [..., L, L] → [..., L, L + 1]."""
    return torch.cat([torch.full_like(matrix[..., :1], value), matrix], dim=-1)


class _PairBias(PositionalScheme):
    """Σ_s b_hs f(M_s[query orbital, key orbital]) + b_h0 at the start token, b learned from zero on."""

    extension = "every weight carries over; the pairs are those of the new system"

    def __init__(self, context: PositionContext, sources: Sequence[str], transform: Transform) -> None:
        super().__init__(context)
        if not sources:
            raise UserError("sources is empty, expected at least one: change model.ansatz.positional.sources")
        strengths = torch.stack([pair_strengths(context.pair(source), transform) for source in sources])
        start_only = with_start(torch.zeros_like(strengths[:1]), 1.0)
        self.strengths: Tensor
        self.register_buffer("strengths", torch.cat([start_only, with_start(strengths)]))
        self.weights = nn.Parameter(torch.zeros(context.n_heads, 1 + len(sources)))

    def bias(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """[H, Tq, Tk]."""
        predicted, carried = self.query_orbitals(q_positions), self.key_orbitals(k_positions)
        n_orb = self.strengths.shape[1]
        self.require_known(predicted, n_orb, f"{type(self).__name__} knows {n_orb} orbitals")
        strengths = self.strengths[:, predicted[:, None], carried[None, :] + 1]
        return torch.einsum("hs,sqk->hqk", self.weights, strengths.to(self.weights.dtype))


class IntegralBias(_PairBias):
    """b_h · f of the molecule's integrals: exchange K_pq = (pq|qp), Coulomb J_pq = (pp|qq), one-electron |h_pq|.

    Args:
        context: what the decoder tells.
        sources: which integrals, each with weights of its own.
        transform: f of the share of the strongest pair: linear, square root, or logarithmic below a thousandth.
    """

    def __init__(
        self,
        context: PositionContext,
        sources: list[Literal["exchange", "coulomb", "one_electron"]] | None = None,
        transform: Transform = "log",
    ) -> None:
        super().__init__(context, ["exchange"] if sources is None else sources, transform)


class MutualInformationBias(_PairBias):
    """b_h · f(I_pq) of the orbital mutual information I_pq = S_p + S_q − S_pq (Rissler et al. 2006,
    Chem. Phys. 323, 519), which the ansatz takes from the CISD state.

    Args:
        context: what the decoder tells.
        transform: f of the share of the strongest pair: linear, square root, or logarithmic below a thousandth.
    """

    def __init__(self, context: PositionContext, transform: Transform = "log") -> None:
        super().__init__(context, ["mutual_information"], transform)
