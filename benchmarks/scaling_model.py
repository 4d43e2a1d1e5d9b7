"""A model of one step on many GPUs: work by the share of determinants, imbalance of recorded trees, collectives.

T(P) = [t_sample / w(P) + t_rest] + Σ over collectives (latency · log₂ P + bytes / bandwidth). The times are CPU seconds
of one thread here, by determinant and parameter, divided by ``SPEED_UP``; w(P) is the balance of the walk through a
recorded tree that is dealt out to P ranks. After levelling, every rank holds equally many determinants.
"""

from __future__ import annotations

import math
from typing import Any

from rich.table import Table
from sampling_balance import record, simulate

SPEED_UP = 200.0
"""Assumed: one GPU over one CPU thread at this network and batch. Not measured: no GPU was at hand."""
BANDWIDTH = 25e9
"""Assumed: bytes per second that a rank receives between nodes, half of a 400 Gb/s card."""
LATENCY = 15e-6
"""Assumed: seconds per collective and doubling of the ranks."""
N_COLLECTIVES = 40
"""Small collectives of a step: lengths, sums and maxima of sampler, estimators and direction."""
ROW_BYTES = 16 + 16
"""One gathered determinant of at most 64 orbitals (two words) and its complex128 log ψ."""
DETERMINANTS = 100_000
"""Per rank."""
NETWORKS = {"this benchmark's": None, "10 M parameters": 1e7, "100 M parameters": 1e8}
RANKS = (1, 8, 64, 1024)


def extrapolate(scaling: dict[str, Any], quick: bool) -> dict[str, Any]:
    """Weak-scaling step times and efficiencies; work grows with the parameters of the network."""
    rows = scaling[list(scaling)[-1]]
    seconds = {phase: times[1] for phase, times in rows["alone"]["seconds"].items()}
    per_row = 1 / rows["alone"]["unique"][0] / SPEED_UP
    balance = walk_balance(quick)
    results = []
    for label, parameters in NETWORKS.items():
        n_parameters = parameters or rows["parameters"]
        scale = n_parameters / rows["parameters"]
        sample = seconds["sample"] * per_row * DETERMINANTS * scale
        rest = seconds["local_energy"] + scale * seconds["backward"]
        rest *= per_row * DETERMINANTS
        base = sample + rest
        for ranks in RANKS:
            table = (ranks - 1) * DETERMINANTS * ROW_BYTES / BANDWIDTH
            gradient = 2 * (1 - 1 / ranks) * 4 * n_parameters / BANDWIDTH
            latency = N_COLLECTIVES * LATENCY * math.log2(ranks)
            step = sample / balance.get(ranks, 1.0) + rest + table + gradient + latency
            results.append(
                {
                    "network": label,
                    "parameters": n_parameters,
                    "ranks": ranks,
                    "work_s": base,
                    "walk_balance": balance.get(ranks, 1.0),
                    "gather_s": table,
                    "gradient_s": gradient,
                    "latency_s": latency,
                    "efficiency": base / step,
                    "gathered_gb": ranks * DETERMINANTS * ROW_BYTES / 1e9,
                }
            )
    assumptions = {
        "speed_up": SPEED_UP,
        "bandwidth": BANDWIDTH,
        "latency": LATENCY,
        "n_collectives": N_COLLECTIVES,
        "determinants_per_rank": DETERMINANTS,
    }
    return {"assumptions": assumptions, "rows": results}


def walk_balance(quick: bool) -> dict[int, float]:
    """Mean over largest number of determinants that ranks sample, by number of ranks, for a recorded tree."""
    _, recorded, density = record("N2/cc-pVDZ-sized", quick)
    balance = {}
    for ranks in RANKS[1:3] if quick else RANKS[1:]:
        loads, _ = simulate(recorded, density, ranks)
        balance[ranks] = sum(loads) / ranks / max(loads)
    return balance


def model_table(model: dict[str, Any]) -> Table:
    table = Table(
        title=f"Model: weak scaling, {DETERMINANTS:,} determinants per GPU", caption=str(model["assumptions"])
    )
    for heading in (
        "network",
        "GPUs",
        "work / ms",
        "walk",
        "gather",
        "gradient",
        "latency",
        "efficiency",
        "table / GB",
    ):
        table.add_column(heading, justify="left" if heading == "network" else "right")
    for row in model["rows"]:
        table.add_row(
            row["network"],
            str(row["ranks"]),
            f"{1e3 * row['work_s']:.1f}",
            f"{row['walk_balance']:.2f}",
            *(f"{1e3 * row[key]:.2f}" for key in ("gather_s", "gradient_s", "latency_s")),
            f"{row['efficiency']:.0%}",
            f"{row['gathered_gb']:.3f}",
        )
    return table


if __name__ == "__main__":
    print(walk_balance(quick=True))
