"""Sites of a rectangular lattice. A query stands for the site about to be predicted, a key for the site whose token
it carries."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nnqs_lightning.errors import UserError
from nnqs_lightning.nn.positional.base import PositionalScheme, PositionContext


class Lattice2D(PositionalScheme):
    """x + row[r] + column[c] of the predicted site, and a learned bias b_h[Δr, Δc] from each key's site.

    Site p of the integrals stands in row p // n_columns and column p % n_columns, whatever the decoding order.

    Args:
        context: what the decoder tells.
        n_columns: sites in a row; it divides the number of sites.
        periodic: whether displacements wrap around both edges.

    Raises:
        UserError: n_columns does not divide the number of sites.
    """

    extension = "rows and columns that were there carry over; a bias on a lattice of another shape starts anew"

    def __init__(self, context: PositionContext, n_columns: int, periodic: bool = False) -> None:
        super().__init__(context)
        if n_columns < 1 or context.n_positions % n_columns:
            raise UserError(
                f"n_columns is {n_columns}, expected a divisor of the {context.n_positions} sites: "
                "change model.ansatz.positional.n_columns"
            )
        self.n_rows, self.n_columns = context.n_positions // n_columns, n_columns
        self.periodic = periodic
        self.sites: Tensor
        self.register_buffer("sites", context.feature("index").long())
        self.row = nn.Embedding(self.n_rows, context.d_model)
        self.column = nn.Embedding(n_columns, context.d_model)
        rows, columns = (n if periodic else 2 * n - 1 for n in (self.n_rows, n_columns))
        # The last entry belongs to the start token, which has no site.
        self.displacement = nn.Embedding(rows * columns + 1, context.n_heads)
        nn.init.zeros_(self.displacement.weight)

    def embed(self, x: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
        """Add the vectors of the predicted site's row and column; UserError beyond the lattice."""
        sites = self._predicted_sites(positions).expand(tokens.shape)
        return x + self.row(sites // self.n_columns) + self.column(sites % self.n_columns)

    def bias(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """[H, Tq, Tk]."""
        carried = self.key_orbitals(k_positions)
        here, there = self._predicted_sites(q_positions)[:, None], self.sites[carried.clamp(min=0)][None, :]
        rows = here // self.n_columns - there // self.n_columns
        columns = here % self.n_columns - there % self.n_columns
        if self.periodic:
            entries = (rows % self.n_rows) * self.n_columns + columns % self.n_columns
        else:
            entries = (rows + self.n_rows - 1) * (2 * self.n_columns - 1) + columns + self.n_columns - 1
        entries = torch.where(carried >= 0, entries, self.displacement.num_embeddings - 1)
        return self.displacement(entries).permute(2, 0, 1)

    def resize(self, name: str, trained: Tensor, places: Tensor) -> Tensor | None:
        """The trained rows or columns first, new ones as they are; no bias."""
        if name == "displacement.weight":
            return None
        here = self.get_parameter(name)
        return torch.cat([trained[: len(here)], here[len(trained) :]])

    def _predicted_sites(self, positions: Tensor) -> Tensor:
        predicted = self.query_orbitals(positions)
        self.require_known(predicted, len(self.sites), f"Lattice2D knows {len(self.sites)} sites")
        return self.sites[predicted]
