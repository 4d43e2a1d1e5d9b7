"""A model of one step on many GPUs: weak scaling of work, replicated work, imbalance and collectives.

T(P) = t_sample / w(P) + t_backward + pairs(P) + opening(P) + gather(P) + gradient(P) + latency(P), every rank with n
determinants of its own.

- t_sample and t_backward: CPU seconds of one thread here, by determinant and parameter, over ``SPEED_UP``.
- w(P): mean over largest walk when a recorded tree of N2/cc-pVDZ size is dealt out to P ranks.
- pairs: local energies within the whole set compare each of a rank's n determinants with all P n, as on a GPU.
- opening: a pass of the decoder over each of a rank's two cuts, and what samplers do at every node on the way.
- gather: determinants and log ψ of all others, and the keys by which the next draw is shared out.
- gradient: ring all-reduce. latency: the counted collectives of a step, each log₂ P hops.
"""

from __future__ import annotations

import math
from typing import Any

from rich.table import Table
from sampling_balance import TREES, Tree, balance, record

from nnqs_lightning.sampling.density import MAX_KEPT

SPEED_UP = 200.0
"""Assumed: one GPU over one CPU thread at this network and batch."""
PAIR_RATE = 5e11
"""Assumed: pairs of determinants that a GPU compares in a second."""
CALL = 1e-3
"""Assumed: seconds of one decoder call on few rows, which is launching kernels."""
BANDWIDTH = 25e9
"""Assumed: bytes per second that a rank receives between nodes, half of a 400 Gb/s card."""
NODE = CALL / 2
"""Assumed, the ratio being that on a CPU: seconds for one node whose conditionals are known."""
LATENCY = 15e-6
"""Assumed: seconds per collective and doubling of the ranks."""
ROW_BYTES = 16 + 16
"""One gathered determinant of at most 64 orbitals (two words) and its complex128 log ψ."""
KEY_BYTES = 8
"""One key of at most 31 orbitals of the density of a draw."""
N_ORBITALS = 28
DETERMINANTS = 100_000
"""Per rank."""
NETWORKS = {"this benchmark's": None, "10 M parameters": 1e7, "100 M parameters": 1e8}
RANKS = (1, 8, 64, 1024)
TERMS = ("work", "walk", "pairs", "opening", "gather", "gradient", "latency")


def extrapolate(rows: dict[str, Any], quick: bool) -> dict[str, Any]:
    """Step times and efficiencies from the figures of one section of the benchmark; work grows with the parameters."""
    single = rows["kinds"]["single"]
    per_row = DETERMINANTS / single["unique"][0] / SPEED_UP
    sample, backward = (single["cpu"][phase] * per_row for phase in ("sample", "backward"))
    balances = {1: 1.0, **walk_balance(quick)}
    results = []
    for label, parameters in NETWORKS.items():
        n_parameters = parameters or rows["parameters"]
        scale = n_parameters / rows["parameters"]
        for ranks, walk in balances.items():
            hops = math.log2(ranks)
            terms = {
                "work": (sample + backward) * scale,
                "walk": sample * scale * (1 / walk - 1),
                "pairs": DETERMINANTS**2 * ranks / PAIR_RATE,
                "opening": (ranks > 1) * 2 * (CALL + N_ORBITALS * NODE),
                "gather": gathered_bytes(ranks) / BANDWIDTH,
                "gradient": 2 * (1 - 1 / ranks) * 4 * n_parameters / BANDWIDTH,
                "latency": rows["kinds"]["weak"]["collectives"] * LATENCY * hops,
            }
            results.append(
                {
                    "network": label,
                    "parameters": n_parameters,
                    "ranks": ranks,
                    "balance": walk,
                    "seconds": terms,
                    "step": sum(terms.values()),
                    "gathered_gb": ranks * DETERMINANTS * ROW_BYTES / 1e9,
                }
            )
            first = next(row for row in results if row["network"] == label)
            results[-1]["efficiency"] = first["step"] / results[-1]["step"]
            # As it would be if comparing pairs did not grow with the set.
            results[-1]["efficiency_without_pairs"] = (first["step"] - first["seconds"]["pairs"]) / (
                results[-1]["step"] - terms["pairs"]
            )
    assumptions = {
        "speed_up": SPEED_UP,
        "pair_rate": PAIR_RATE,
        "call": CALL,
        "node": NODE,
        "bandwidth": BANDWIDTH,
        "latency": LATENCY,
        "collectives": rows["kinds"]["weak"]["collectives"],
        "determinants_per_rank": DETERMINANTS,
    }
    return {"assumptions": assumptions, "rows": results}


def gathered_bytes(ranks: int) -> int:
    """What one rank receives of the others' samples."""
    keys = min(ranks * DETERMINANTS, MAX_KEPT) * KEY_BYTES
    return (ranks - 1) * (DETERMINANTS * ROW_BYTES + keys // ranks)


def walk_balance(quick: bool) -> dict[int, float]:
    """Mean over largest number of nodes that ranks decode, by number of ranks, for a recorded tree."""
    name = "N2/cc-pVDZ-sized"
    sector, _, _, sizes = TREES[name]
    _, leaves, density = record(name, sizes[0] / 100 if quick else sizes[0])
    tree = Tree(leaves, sector)
    return {ranks: balance(tree.loads(density.cuts(ranks)).nodes) for ranks in (RANKS[1:3] if quick else RANKS[1:])}


def model_table(model: dict[str, Any]) -> Table:
    caption = ", ".join(f"{name} {value:g}" for name, value in model["assumptions"].items())
    table = Table(title=f"Model: weak scaling, {DETERMINANTS:,} determinants per GPU; ms", caption=caption)
    for heading in ("network", "GPUs", "balance", *TERMS, "efficiency", "without pairs", "set / GB"):
        table.add_column(heading, justify="left" if heading == "network" else "right")
    for row in model["rows"]:
        table.add_row(
            row["network"],
            f"{row['ranks']:,}",
            f"{row['balance']:.2f}",
            *(f"{1e3 * row['seconds'][term]:.1f}" for term in TERMS),
            f"{row['efficiency']:.0%}",
            f"{row['efficiency_without_pairs']:.0%}",
            f"{row['gathered_gb']:.3f}",
        )
    return table
