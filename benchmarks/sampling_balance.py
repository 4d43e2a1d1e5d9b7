"""Load balance of many ranks, simulated: the shares of every rank of a recorded draw, without a network.

The tree of one draw is dealt out by the density of the draw before it, as in training. ``walked`` is the number of
determinants that a rank samples, ``held`` that after levelling: both mean over largest. ``opened`` counts the nodes
that a rank opens which others open as well, relative to the determinants that it holds.
"""

from __future__ import annotations

from typing import Any

import torch
from rich.table import Table
from sampling_trees import RecordedTree, ThermalAnsatz

from nnqs_lightning.fock import SampleBatch, Sector
from nnqs_lightning.sampling import SystematicSampler, tree
from nnqs_lightning.sampling.density import Density, expected_leaves
from nnqs_lightning.sampling.shares import Share, deal, parts_of

# Sector, temperature (hartree) and walkers: the aufbau determinant has a weight of 0.8 and 0.6.
TREES = {
    "N2/cc-pVDZ-sized": (Sector(26, 5, 5), 0.2, 0.8, 1e14),
    "H10/6-31G-sized": (Sector(20, 5, 5), 0.25, 0.8, 3e13),
}


def record(name: str, quick: bool) -> tuple[SampleBatch, RecordedTree, Density]:
    """A draw from one of ``TREES``, its tree, and the density of the draw before it."""
    sector, temperature, noise, n_walkers = TREES[name]
    n_occupied = sector.n_alpha
    levels = [torch.linspace(-1.5, -0.6, n_occupied), torch.linspace(0.1, 3.5, sector.n_orb - n_occupied)]
    ansatz = ThermalAnsatz(sector, torch.cat(levels).double(), temperature, noise)
    sampler = SystematicSampler(n_walkers / 100 if quick else n_walkers)
    before, now = (sampler.sample(ansatz, seed=0, step=step) for step in range(2))
    trees = [RecordedTree(sector, batch.determinants, batch.counts) for batch in (before, now)]
    return now, trees[1], Density.measure(trees[0].leaves)


def balance_rows(quick: bool) -> list[dict[str, Any]]:
    """Balance against the number of ranks."""
    rows = []
    for name in TREES:
        now, recorded, density = record(name, quick)
        for world in (4, 64) if quick else (4, 64, 256, 1024, 4096):
            loads, opened = simulate(recorded, density, world)
            mean = sum(loads) / world
            rows.append(
                {
                    "tree": name,
                    "unique": len(now),
                    "largest_weight": float(now.weights.max()),
                    "ranks": world,
                    "walked": mean / max(loads),
                    "held": mean / -(-len(now) // world),
                    "moved": sum(max(load - mean, 0.0) for load in loads) / len(now),
                    "opened": opened / mean,
                }
            )
    return rows


def simulate(recorded: RecordedTree, density: Density, world: int) -> tuple[list[int], float]:
    """Leaves of every rank, and the mean number of nodes that a rank opens in order to share."""
    opened = 0.0
    log_conditionals = recorded.log_conditionals

    def counted(state: Any) -> torch.Tensor:
        nonlocal opened
        opened += len(state) * group / world
        return log_conditionals(state)

    recorded.log_conditionals = counted  # type: ignore[method-assign]
    total = recorded.leaves.values.sum().reshape(1)
    queue, loads = [(Share([tree.Branch.root(total, 0)]), world)], []
    while queue:
        share, group = queue.pop()
        if group == 1:
            loads.append(sum(map(len, share.leaves)) + sum(_leaves_below(recorded, b) for b in share.branches))
            continue
        bounds = parts_of(group)
        parts = deal(
            recorded,
            share,
            recorded.rule,
            lambda nodes: expected_leaves(density, nodes, nodes.values.double()),
            bounds,
        )
        queue += [(part, bounds[i + 1] - bounds[i]) for i, part in enumerate(parts)]
    del recorded.log_conditionals
    assert sum(loads) == len(recorded.leaves)
    return loads, opened


def _leaves_below(recorded: RecordedTree, branch: tree.Branch) -> int:
    state = branch.open(recorded)
    return int((state.last - state.first).sum())


def balance_table(rows: list[dict[str, Any]]) -> Table:
    """One line for each number of ranks."""
    table = Table(title="Load balance, mean over largest rank (simulated on recorded draws)")
    for heading in ("tree", "unique", "ranks", "unique a rank", "walked", "held", "moved", "opened / own"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            row["tree"],
            f"{row['unique']:,}",
            f"{row['ranks']:,}",
            f"{row['unique'] / row['ranks']:,.0f}",
            f"{row['walked']:.3f}",
            f"{row['held']:.3f}",
            f"{row['moved']:.1%}",
            f"{row['opened']:.2f}",
        )
    return table
