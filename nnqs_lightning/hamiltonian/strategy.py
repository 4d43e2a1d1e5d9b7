"""Ways to sum H ψ over a set of determinants, and what each is expected to cost."""

from __future__ import annotations

from dataclasses import dataclass
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
    """Every connected state, looked up in a hash table: large sets with few common strings."""
    pair_scan = "pair_scan"
    """Every pair of the set: the oracle, and no slower than others on the smallest sets."""


@dataclass(frozen=True)
class Work:
    """Operations that each strategy would need; what the cost model weighs."""

    products: float
    """Multiply–adds in matrix products (string_factored); infinite where the table of ψ would not fit."""
    gathered: float
    """Links followed into those products."""
    visits: float
    """Linked sources or targets visited by string_groups."""
    read_pairs: float
    """Pairs within groups that share a string, their one-spin elements read from a table."""
    made_pairs: float
    """One-spin elements made, for such a table or on the spot."""
    connected: float
    """Connected states enumerated and looked up by hash."""
    pairs: float
    """All pairs of a wanted row and a member of the set."""
    strings: float
    """Strings whose excitations are looked up, times their number."""

    def seconds(self) -> dict[Strategy, float]:
        """Expected seconds on one core of 2020s hardware, small fixed costs included. The choice needs their order."""
        links = 1e-3 + 5e-8 * self.strings
        one_spin = 1.2e-9 * self.read_pairs + 1.6e-8 * self.made_pairs
        return {
            Strategy.string_factored: links + 6e-11 * self.products + 2e-9 * self.gathered,
            Strategy.string_groups: 1e-3 + links + 1.8e-9 * self.visits + one_spin,
            Strategy.hash: 2e-4 + 3e-8 * self.connected,
            Strategy.pair_scan: 2e-4 + 8e-9 * self.pairs,
        }

    def cheapest(self) -> Strategy:
        """The strategy with the lowest expected cost."""
        costs = self.seconds()
        return min(costs, key=lambda strategy: costs[strategy])
