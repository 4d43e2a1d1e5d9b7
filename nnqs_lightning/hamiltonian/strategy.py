"""Ways to sum H ψ over a set of determinants."""

from __future__ import annotations

from enum import Enum


class Strategy(str, Enum):
    """How the members of the set that H connects are found."""

    auto = "auto"
    """The cheapest one by the cost model."""
    string_factored = "string_factored"
    """Dense ψ over distinct α × distinct β strings and matrix products: sets that nearly fill that table."""
    string_groups = "string_groups"
    """Groups of determinants that share a spin string: visits members of the set alone."""
    hash = "hash"
    """Every connected state, looked up in a hash table: sets without common strings."""
    pair_scan = "pair_scan"
    """Every pair of the set: the oracle, and the fastest for the smallest sets."""
