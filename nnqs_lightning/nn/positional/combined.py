"""Several schemes at once."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from nnqs_lightning.nn.positional.base import PositionalFactory, PositionalScheme, PositionContext


class Combined(PositionalScheme):
    """Several schemes at once: signals and biases add up, rotations follow each other.

    A bias steers attention without telling a query which orbital it predicts; beside it belongs an embedding.

    Args:
        context: what the decoder tells.
        schemes: each as it would stand in place of this one.
    """

    extension = "as each of its schemes does"

    def __init__(self, context: PositionContext, schemes: list[PositionalFactory]) -> None:
        super().__init__(context)
        # A ModuleList forgets what kind of modules it holds.
        self.schemes = cast("list[PositionalScheme]", nn.ModuleList(scheme(context) for scheme in schemes))
        self.contextual = any(scheme.contextual for scheme in self.schemes)

    def embed(self, x: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
        """The signals of all schemes."""
        for scheme in self.schemes:
            x = scheme.embed(x, positions, tokens)
        return x

    def rotate(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> tuple[Tensor, Tensor]:
        """The rotations of all schemes, one after the other."""
        for scheme in self.schemes:
            q, k = scheme.rotate(q, k, q_positions, k_positions)
        return q, k

    def bias(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor | None:
        """The sum of the schemes' biases; None where none has one."""
        total = None
        for scheme in self.schemes:
            bias = scheme.bias(q, k, q_positions, k_positions)
            if bias is not None:
                total = bias if total is None else total + bias
        return total
