"""Load balance of many ranks, simulated: the shares of every rank of a recorded draw, without a network.

The tree of one draw is cut by the work of the draw before it, as in training. A rank decodes its *own* nodes, below
which all determinants are its own, and *shared* ones, which hold a cut and which a neighbour decodes as well.

- own: balance (mean over largest rank) of own nodes;
- total: balance of own and shared nodes together;
- efficiency: nodes of the tree over (ranks × nodes of the busiest rank): what is left of an ideal speed-up;
- held: balance of the determinants after levelling, which energies and gradients work on;
- moved: fraction of the determinants that levelling sends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from rich.table import Table
from sampling_trees import ThermalAnsatz
from torch import Tensor

from nnqs_lightning.fock import SampleBatch, Sector
from nnqs_lightning.sampling import SystematicSampler, prefix
from nnqs_lightning.sampling.density import Density
from nnqs_lightning.sampling.leaves import Leaves

# Sector, temperature and noise (hartree), walkers: the aufbau determinant has a weight of 0.8 and 0.75.
TREES = {
    "N2/cc-pVDZ-sized": (Sector(26, 5, 5), 0.2, 0.8, (1e14, 1e16)),
    "H10/6-31G-sized": (Sector(20, 5, 5), 0.25, 0.8, (3e13, 3e15)),
}


def record(name: str, n_walkers: float) -> tuple[SampleBatch, Leaves, Density]:
    """A draw from one of ``TREES``, its leaves, and the density of the draw before it."""
    sector, temperature, noise, _ = TREES[name]
    n_occupied = sector.n_alpha
    levels = [torch.linspace(-1.5, -0.6, n_occupied), torch.linspace(0.1, 3.5, sector.n_orb - n_occupied)]
    ansatz = ThermalAnsatz(sector, torch.cat(levels).double(), temperature, noise)
    sampler = SystematicSampler(n_walkers)
    before, now = (sampler.sample(ansatz, seed=0, step=step) for step in range(2))
    leaves = [Leaves(prefix.pack(ansatz.to_tokens(x.determinants)), x.counts, x.weights.log()) for x in (before, now)]
    return now, leaves[1], Density.measure(leaves[0], sector.n_orb)


def balance_rows(quick: bool) -> list[dict[str, Any]]:
    """Balance against the number of ranks."""
    rows = []
    for name, (sector, _, _, sizes) in TREES.items():
        for n_walkers in [sizes[0] / 100] if quick else sizes:
            now, leaves, density = record(name, n_walkers)
            tree = Tree(leaves, sector)
            whole = int(tree.loads(leaves.keys[:0]).nodes)
            for world in (4, 64) if quick else (4, 64, 256, 1024, 4096):
                loads = tree.loads(density.cuts(world))
                own = loads.nodes - loads.shared
                mean = len(now) / world
                rows.append(
                    {
                        "tree": name,
                        "unique": len(now),
                        "nodes": whole,
                        "largest_weight": float(now.weights.max()),
                        "ranks": world,
                        "own": balance(own),
                        "total": balance(loads.nodes),
                        "efficiency": whole / world / int(loads.nodes.max()),
                        "shared": float(loads.shared.double().mean()),
                        "held": mean / -(-len(now) // world),
                        "moved": float((loads.leaves - mean).clamp(min=0).sum()) / len(now),
                    }
                )
    return rows


def balance(loads: Tensor) -> float:
    """Mean over largest."""
    return float(loads.double().mean() / loads.max())


@dataclass
class Loads:
    """What each rank has to do, int64 [ranks]."""

    leaves: Tensor
    """Determinants in its interval."""
    nodes: Tensor
    """Nodes that it decodes."""
    shared: Tensor
    """Those of them that hold one of its cuts."""


class Tree:
    """The decoded nodes of sorted leaves, depth by depth, each as the first and the last key below it."""

    def __init__(self, leaves: Leaves, sector: Sector) -> None:
        assert leaves.keys.shape[1] == 1
        self.keys = leaves.keys[:, 0]
        self.levels = []
        for depth in range(sector.n_orb):
            behind = 3 * prefix.filled(sector.n_orb, depth, self.keys.device)
            first = torch.unique_consecutive(self.keys & ~behind)
            alpha, beta = prefix.electrons(first[:, None])
            alpha, beta, left = sector.n_alpha - alpha, sector.n_beta - beta, sector.n_orb - depth
            first = first[~(((alpha == 0) | (alpha == left)) & ((beta == 0) | (beta == left)))]
            self.levels.append((first, first | behind))

    def loads(self, cuts: Tensor) -> Loads:
        """Of all ranks, given the keys [ranks − 1, 1] between them."""
        inner = cuts[:, 0]
        bounds = torch.cat([inner.new_zeros(1), inner, inner.new_full((1,), 2**62)])
        place = torch.searchsorted(self.keys, bounds)
        nodes = shared = torch.zeros(len(bounds) - 1, dtype=torch.int64)
        for first, last in self.levels:
            starts, ends = torch.searchsorted(first, bounds), torch.searchsorted(last, bounds)
            met = (starts[1:] - ends[:-1]).clamp(min=0)
            inside = (ends[1:] - starts[:-1]).clamp(min=0)
            nodes, shared = nodes + met, shared + met - inside
        return Loads(place.diff(), nodes, shared)


def balance_table(rows: list[dict[str, Any]]) -> Table:
    """One line for each number of ranks."""
    table = Table(title="Load balance, mean over largest rank (simulated on recorded draws)")
    headings = (
        "tree",
        "unique",
        "nodes",
        "ranks",
        "nodes a rank",
        "shared",
        "own",
        "total",
        "efficiency",
        "held",
        "moved",
    )
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            row["tree"],
            f"{row['unique']:,}",
            f"{row['nodes']:,}",
            f"{row['ranks']:,}",
            f"{row['nodes'] / row['ranks']:,.0f}",
            f"{row['shared']:.1f}",
            *(f"{row[key]:.3f}" for key in ("own", "total", "efficiency", "held")),
            f"{row['moved']:.1%}",
        )
    return table
