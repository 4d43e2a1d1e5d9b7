"""The contract of a positional scheme."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from torch import Tensor, nn

from nnqs_lightning.errors import UserError


@dataclass(frozen=True)
class PositionContext:
    """What a scheme may know of the decoder that it serves."""

    n_positions: int
    """Number of places: one for each of the L inputs [S, t_0 … t_{L−2}]; output i predicts t_i."""
    d_model: int
    n_heads: int
    d_head: int
    start_position: int = 0
    """Place of the start token. 0: it shares the count, t_i stands at i + 1. −1: its own place, t_i stands at i."""
    pairs: Mapping[str, Tensor] = field(default_factory=dict)
    """Named orbital-pair matrices [L, L] in decoding order: ``exchange``, ``coulomb``, ``one_electron``, …"""
    features: Mapping[str, Tensor] = field(default_factory=dict)
    """Named orbital features [L] or [L, k] in decoding order: ``energy``, ``occupation``, …"""

    def pair(self, name: str) -> Tensor:
        """The matrix of that name; UserError if the system offers none."""
        return _take(self.pairs, name, "orbital pairs")

    def feature(self, name: str) -> Tensor:
        """The feature of that name; UserError if the system offers none."""
        return _take(self.features, name, "orbital features")


def _take(offered: Mapping[str, Tensor], name: str, kind: str) -> Tensor:
    if name not in offered:
        raise UserError(
            f"model.ansatz.positional wants {kind} '{name}', offered are {', '.join(sorted(offered)) or 'none'}: "
            "change the scheme's options or give model.system what it lacks"
        )
    return offered[name]


class PositionalScheme(nn.Module, ABC):
    """Tells a decoder where its tokens sit: three hooks, each an identity by default, all three always called.

    Positions are int64 [T], passed explicitly so that cached decoding sees the same ones as a full pass; they run
    from ``context.start_position`` on. Schemes that name orbitals use :meth:`query_orbitals` and
    :meth:`key_orbitals`: a query stands for the orbital about to be predicted, a key for the orbital whose token
    it carries.
    """

    extension: ClassVar[str]
    """How the scheme carries over to a system with more orbitals, in one clause."""
    contextual: bool = False
    """Whether :meth:`bias` reads keys; a cached step does without copying them for schemes that do not."""

    def __init__(self, context: PositionContext) -> None:
        super().__init__()
        # Pairs and features are read at construction; keeping them would drag all integrals along with the module.
        self.context = replace(context, pairs={}, features={})

    def query_orbitals(self, positions: Tensor) -> Tensor:
        """Decoding index of the orbital that a query at each position predicts: 0 … L − 1."""
        return positions - self.context.start_position

    def key_orbitals(self, positions: Tensor) -> Tensor:
        """Decoding index of the orbital whose token a key at each position carries; −1 for the start token."""
        return positions - self.context.start_position - 1

    def embed(self, x: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
        """Add to the token embeddings: [N, T, d_model] → the same shape.

        ``tokens`` [N, T] are the pair tokens α + 2β that ``x`` embeds; the start token is 4, without either bit.
        """
        return x

    def rotate(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> tuple[Tensor, Tensor]:
        """Rotate queries [N, H, Tq, d_head] and keys [N, H, Tk, d_head]."""
        return q, k

    def bias(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor | None:
        """Additive attention bias, [H, Tq, Tk] or (contextual schemes) [N, H, Tq, Tk]; None for zero.

        ``q`` and ``k`` are the rotated queries and keys; a cached step hands no keys to schemes that are not
        contextual.
        """
        return None

    def resize(self, name: str, trained: Tensor, places: Tensor) -> Tensor | None:
        """A parameter trained on another system, made to fit this one.

        Args:
            name: of the parameter within this module.
            trained: its value there, of another shape than here.
            places: int64 [L]: where that system decoded the orbital that this one decodes i-th, −1 if nowhere.

        Returns:
            The value here, or None if nothing can be made of it.
        """
        return None

    @staticmethod
    def require_known(indices: Tensor, limit: int, what: str) -> None:
        """UserError if an index reaches ``limit``; ``what`` says in one clause why there is a limit."""
        if indices.numel() and int(indices.max()) >= limit:
            raise UserError(
                f"{what} and cannot serve place {int(indices.max()) + 1}: build model.ansatz for the longer system "
                "and load what fits, or choose a model.ansatz.positional that extends, such as Rotary or Alibi"
            )


PositionalFactory = Callable[[PositionContext], PositionalScheme]
"""What the config key ``model.ansatz.positional`` holds: a class whose first argument is the context."""
