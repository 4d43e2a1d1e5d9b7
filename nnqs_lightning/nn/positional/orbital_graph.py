"""Distances between orbitals in the graph of their couplings, in place of the distance of their indices. A query
stands for the orbital about to be predicted, a key for the orbital whose token it carries."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nnqs_lightning.errors import UserError
from nnqs_lightning.nn.positional.base import PositionalScheme, PositionContext
from nnqs_lightning.nn.positional.bias import DistanceBiasFactory, RelativeBias
from nnqs_lightning.nn.positional.orbital_pairs import PairSource, pair_strengths, with_start


def fiedler_vector(couplings: Tensor) -> Tensor:
    """Second eigenvector of the graph Laplacian of a symmetric matrix's magnitudes: [L, L] → float64 [L].

    The diagonal is not read. The first component of notable size is negative, which fixes the sign.

    Raises:
        UserError: nothing is coupled.
    """
    strengths = pair_strengths(couplings)
    if len(strengths) < 2:
        return torch.zeros(len(strengths), dtype=torch.float64)
    if not strengths.any():
        raise UserError(
            "no Fiedler vector: the chosen integrals vanish between all orbitals, expected couplings: change 'source' "
            "of model.ansatz.orbital_order or model.ansatz.positional (one_electron for a lattice)"
        )
    vector = torch.linalg.eigh(torch.diag(strengths.sum(1)) - strengths)[1][:, 1]
    leading = vector[(vector.abs() > 1e-6).nonzero()[0]]
    return -leading.sign() * vector


def fiedler_distances(couplings: Tensor) -> Tensor:
    """|v_p − v_q| (L − 1) / (max v − min v): couplings [L, L] → float64 [L, L]."""
    vector = fiedler_vector(couplings)
    spread = vector.max() - vector.min()
    return (vector[:, None] - vector[None, :]).abs() * (len(vector) - 1) / spread.clamp(min=1e-12)


def path_lengths(joined: Tensor) -> Tensor:
    """Steps on the shortest path (Floyd and Warshall), L where there is none: bool [L, L] → float64 [L, L]."""
    n_orb = len(joined)
    steps = torch.where(joined, 1.0, float(n_orb)).double().fill_diagonal_(0.0)
    for middle in range(n_orb):
        steps = torch.minimum(steps, steps[:, middle, None] + steps[None, middle])
    return steps


class _OrbitalDistance(PositionalScheme):
    """A bias of a distance between the predicted and the carried orbital, and a learned one at the start token."""

    extension = "as its form extends, on the distances of the new system"

    def __init__(self, context: PositionContext, form: DistanceBiasFactory, distances: Tensor) -> None:
        super().__init__(context)
        self.form = form(context)
        self.start = nn.Parameter(torch.zeros(context.n_heads))
        self.distances: Tensor
        self.register_buffer("distances", with_start(distances))

    def bias(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """[H, Tq, Tk]."""
        predicted, carried = self.query_orbitals(q_positions), self.key_orbitals(k_positions)
        n_orb = len(self.distances)
        self.require_known(predicted, n_orb, f"{type(self).__name__} knows {n_orb} orbitals")
        scores = self.form.score(self.distances[predicted[:, None], carried[None, :] + 1]).to(q.dtype)
        return torch.where(carried >= 0, scores, self.start[:, None, None])


class FiedlerDistance(_OrbitalDistance):
    """A distance bias on |v_p − v_q| along the Fiedler vector v of the couplings, stretched to the span 0 … L − 1.

    Args:
        context: what the decoder tells.
        form: the function of the distance: Alibi, T5Bias, RelativeBias, Kerple or one's own DistanceBias.
        source: which orbital pairs are the couplings.
    """

    def __init__(
        self, context: PositionContext, form: DistanceBiasFactory = RelativeBias, source: PairSource = "exchange"
    ) -> None:
        super().__init__(context, form, fiedler_distances(context.pair(source)))


class StrongPairDistance(_OrbitalDistance):
    """A distance bias on the number of steps between orbitals in the graph of strong pairs; L where there is no path.

    Args:
        context: what the decoder tells.
        form: the function of the distance: Alibi, T5Bias, RelativeBias, Kerple or one's own DistanceBias.
        source: which orbital pairs are the couplings.
        threshold: a pair is strong from this share of the strongest pair on.
    """

    def __init__(
        self,
        context: PositionContext,
        form: DistanceBiasFactory = RelativeBias,
        source: PairSource = "exchange",
        threshold: float = 0.1,
    ) -> None:
        if not 0 < threshold <= 1:
            raise UserError(f"threshold is {threshold}, expected 0 … 1: change model.ansatz.positional.threshold")
        super().__init__(context, form, path_lengths(pair_strengths(context.pair(source)) >= threshold))
