"""Schemes that rotate queries and keys, so that scores depend on the distance of their places."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from nnqs_lightning.errors import UserError
from nnqs_lightning.nn.positional.base import PositionalScheme, PositionContext


class Rotary(PositionalScheme):
    """Pairs (2k, 2k+1) of q and k turned by the angle ω_k n, ω_k = base^(−2k/d) (Su et al. 2021, 2104.09864, eq. 15).

    Args:
        context: what the decoder tells.
        base: ratio of the longest to the shortest wavelength.
        fraction: share of the head's dimensions that rotate (Black et al. 2022, 2204.06745); an even number must.
        scaling: how to reach beyond the trained length: ``linear`` divides places by ``factor`` (Chen et al. 2023,
            2306.15595), ``ntk`` raises the base to base · factor^(d/(d−2)), which keeps the fast waves.
        factor: ratio of the wanted to the trained length.

    Raises:
        UserError: the rotated dimensions are odd or none, or a number is out of its range.
    """

    extension = "works at any length; scaling and factor squeeze longer systems into the trained range"

    def __init__(
        self,
        context: PositionContext,
        base: float = 10000.0,
        fraction: float = 1.0,
        scaling: Literal["none", "linear", "ntk"] = "none",
        factor: float = 1.0,
    ) -> None:
        super().__init__(context)
        if base <= 0 or factor <= 0:
            raise UserError(
                f"base is {base} and factor {factor}, expected positive numbers: change model.ansatz.positional"
            )
        self.n_rotated = rotated_dimensions(context, fraction)
        if scaling == "ntk":
            if self.n_rotated < 4:
                raise UserError(
                    f"ntk scaling of {self.n_rotated} rotated dimensions, expected at least 4: "
                    "change model.ansatz.positional.scaling or raise model.ansatz.d_model"
                )
            base = base * factor ** (self.n_rotated / (self.n_rotated - 2))
        self.stretch = factor if scaling == "linear" else 1.0
        self.frequencies: Tensor
        self.register_buffer("frequencies", wave_frequencies(base, self.n_rotated))

    def rotate(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> tuple[Tensor, Tensor]:
        """Turn the first ``n_rotated`` dimensions; the others pass."""
        return turn(q, self._angles(q_positions)), turn(k, self._angles(k_positions))

    def _angles(self, positions: Tensor) -> Tensor:
        return (positions / self.stretch)[:, None] * self.frequencies


class RotaryLearned(PositionalScheme):
    """Rotary with frequencies ω_hk learned per head, from base^(−2k/d) on; they stay positive.

    Args:
        context: what the decoder tells.
        base: ratio of the longest to the shortest wavelength at the start.

    Raises:
        UserError: the width of a head is odd.
    """

    extension = "works at any length"

    def __init__(self, context: PositionContext, base: float = 10000.0) -> None:
        super().__init__(context)
        frequencies = wave_frequencies(base, rotated_dimensions(context, 1.0))
        self.log_frequencies = nn.Parameter(frequencies.log().repeat(context.n_heads, 1).to(torch.get_default_dtype()))

    def rotate(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> tuple[Tensor, Tensor]:
        """Turn every dimension."""
        return turn(q, self._angles(q_positions)), turn(k, self._angles(k_positions))

    def _angles(self, positions: Tensor) -> Tensor:
        return positions[:, None] * self.log_frequencies.exp()[:, None, :]


class XPos(PositionalScheme):
    """Rotary whose score also decays: pair k of q_n is scaled by ζ_k^(n/s), of k_m by ζ_k^(−m/s), ζ_k =
    (2k/d + γ) / (1 + γ) (Sun et al. 2022, 2212.10554).

    Args:
        context: what the decoder tells.
        base: ratio of the longest to the shortest wavelength.
        gamma: γ; the smaller, the faster the fast waves decay.
        decay_length: s; the paper's 512 is for texts.

    Raises:
        UserError: the width of a head is odd, or a number is not positive.
    """

    extension = "works at any length; the decay damps distances beyond the trained ones"

    def __init__(
        self, context: PositionContext, base: float = 10000.0, gamma: float = 0.4, decay_length: float = 64.0
    ) -> None:
        super().__init__(context)
        if min(base, gamma, decay_length) <= 0:
            raise UserError(
                f"base is {base}, gamma {gamma} and decay_length {decay_length}, expected positive numbers: "
                "change model.ansatz.positional"
            )
        self.decay_length = decay_length
        self.frequencies: Tensor
        self.zeta: Tensor
        n_rotated = rotated_dimensions(context, 1.0)
        self.register_buffer("frequencies", wave_frequencies(base, n_rotated))
        shares = torch.arange(0, n_rotated, 2, dtype=torch.float64) / n_rotated
        self.register_buffer("zeta", (shares + gamma) / (1 + gamma))

    def rotate(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> tuple[Tensor, Tensor]:
        """Turn and scale every pair."""
        return self._turn_and_scale(q, q_positions, 1.0), self._turn_and_scale(k, k_positions, -1.0)

    def _turn_and_scale(self, x: Tensor, positions: Tensor, sign: float) -> Tensor:
        angles = positions[:, None] * self.frequencies
        scales = self.zeta ** (sign * positions[:, None] / self.decay_length)
        return turn(x, angles) * scales.repeat_interleave(2, dim=-1).to(x.dtype)


def rotated_dimensions(context: PositionContext, fraction: float) -> int:
    """Number of rotated dimensions of a head; UserError unless it is even and positive."""
    n_rotated = round(context.d_head * fraction)
    if not 0 < fraction <= 1 or n_rotated % 2 or n_rotated == 0:
        raise UserError(
            f"{n_rotated} of {context.d_head} head dimensions (fraction {fraction}) cannot rotate in pairs: make "
            "model.ansatz.d_model / model.ansatz.n_heads even, or change model.ansatz.positional.fraction (0 … 1)"
        )
    return n_rotated


def wave_frequencies(base: float, n_rotated: int) -> Tensor:
    """ω_k = base^(−2k/n_rotated), float64 [n_rotated / 2]."""
    return base ** -(torch.arange(0, n_rotated, 2, dtype=torch.float64) / n_rotated)


def turn(x: Tensor, angles: Tensor) -> Tensor:
    """Rotate the pairs (2k, 2k+1) of the leading dimensions of x [N, H, T, d] by angles [T, k] or [H, T, k]."""
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    n_rotated = 2 * angles.shape[-1]
    even, odd = x[..., 0:n_rotated:2], x[..., 1:n_rotated:2]
    turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)
    return torch.cat([turned, x[..., n_rotated:]], dim=-1)
