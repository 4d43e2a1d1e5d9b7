"""Schemes that add a signal to the embeddings, and the one that gives none."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nnqs_lightning.nn.positional.base import PositionalScheme, PositionContext


class NoPositional(PositionalScheme):
    """No positional signal: order is visible through the causal mask alone (Kazemnejad et al. 2023, 2305.19466)."""

    extension = "works at any length"


class _LearnedRows(PositionalScheme):
    """What schemes with one learned row for each place share."""

    extension = "rows follow their orbitals; those of new orbitals start at random"

    def new_table(self, std: float) -> nn.Embedding:
        """One row for each place, drawn with standard deviation ``std``."""
        table = nn.Embedding(self.context.n_positions, self.context.d_model)
        nn.init.normal_(table.weight, std=std)
        return table

    def rows(self, positions: Tensor, tokens: Tensor) -> Tensor:
        """Row of each token, [N, T]: one look-up per sample lets per-sample gradients be read off the tables."""
        n_rows = self.context.n_positions
        rows = self.query_orbitals(positions)
        self.require_known(rows, n_rows, f"{type(self).__name__} has {n_rows} rows")
        return rows.expand(tokens.shape)

    def resize(self, name: str, trained: Tensor, places: Tensor) -> Tensor:
        """Rows of orbitals that were there; the others as they are."""
        return torch.where((places >= 0)[:, None], trained[places], self.get_parameter(name))


class LearnedAbsolute(_LearnedRows):
    """x_n + e[n] with a learned row for each place (Gehring et al. 2017, 1705.03122).

    It knows no place beyond those it was built for.

    Args:
        context: what the decoder tells.
        std: standard deviation of the rows at the start; 1 is that of the token embeddings.
    """

    def __init__(self, context: PositionContext, std: float = 1.0) -> None:
        super().__init__(context)
        self.table = self.new_table(std)

    def embed(self, x: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
        """Add the rows of the places; UserError beyond the table."""
        return x + self.table(self.rows(positions, tokens))


class SpinAware(_LearnedRows):
    """x_n + e[n] + α e_α[n] + β e_β[n]: a place signals α and β electrons of its token by vectors of their own.

    It knows no place beyond those it was built for.

    Args:
        context: what the decoder tells.
        std: standard deviation of the rows at the start; 1 is that of the token embeddings.
    """

    def __init__(self, context: PositionContext, std: float = 1.0) -> None:
        super().__init__(context)
        self.place = self.new_table(std)
        self.alpha = self.new_table(std)
        self.beta = self.new_table(std)

    def embed(self, x: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
        """Add the rows of the places; UserError beyond the tables."""
        rows = self.rows(positions, tokens)
        alpha, beta = (tokens & 1).unsqueeze(-1), (tokens >> 1 & 1).unsqueeze(-1)
        return x + self.place(rows) + alpha * self.alpha(rows) + beta * self.beta(rows)


class Sinusoidal(PositionalScheme):
    """x_n + [sin(ω_k n), cos(ω_k n)]_k, ω_k = base^(−2k/d_model) (Vaswani et al. 2017, 1706.03762, §3.5).

    Args:
        context: what the decoder tells.
        base: ratio of the longest to the shortest wavelength.
        scale: factor of the whole signal; its root mean square is scale/√2, that of token embeddings 1.
    """

    extension = "works at any length"

    def __init__(self, context: PositionContext, base: float = 10000.0, scale: float = 1.0) -> None:
        super().__init__(context)
        self.scale = scale
        self.frequencies: Tensor
        exponents = torch.arange(0, context.d_model, 2, dtype=torch.float64) / context.d_model
        self.register_buffer("frequencies", base**-exponents)

    def embed(self, x: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
        """Add the waves, sines at even columns, cosines at odd ones."""
        angles = positions[:, None] * self.frequencies
        waves = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)
        return x + self.scale * waves[:, : x.shape[-1]].to(x.dtype)
