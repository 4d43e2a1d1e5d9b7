"""Scaling over ranks: ``python benchmarks/scaling.py [--quick] [--json FILE]``.

Two processes of one thread each, pinned to a core each: strong and weak scaling by phase, DDP against ZeRO-1, -2 and
-3, bytes received per step on 1, 2 and 4 ranks, and a model of the step on many GPUs (``scaling_model.py``). Steps
alone and together alternate; medians are of the slowest rank. Figures are given in wall seconds and in CPU seconds: on
a machine that others use too, the former count what they take.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from scaling_model import extrapolate, model_table

HERE = Path(__file__).parent
WALL, CPU = 0, 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="within a minute: few determinants, few repeats")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    sizes = {"N2": 1000} if arguments.quick else {"H10": 10_000, "N2": 7_000, "N2/cc-pVDZ": 10_000}
    repeats = 3 if arguments.quick else 9
    task = {
        "scaling": [[name, n, repeats] for name, n in sizes.items()],
        "strategies": ["N2", 500, 1, 4] if arguments.quick else ["N2", 4000, 2, 8],
    }
    load = os.getloadavg()[0]
    two = run_ranks(2, task)
    scaling = {name: summary([rank["scaling"][name] for rank in two]) for name in sizes}
    few = {"scaling": [["N2", 500, 1]]}
    traffic = {n: run_ranks(n, few)[0]["scaling"]["N2"]["strong"]["received_bytes"] for n in (1, 2, 4)}
    figures = {
        "torch": torch.__version__,
        "load_before": load,
        "load_after": os.getloadavg()[0],
        "scaling": scaling,
        "strategies": strategy_medians(two),
        "received_bytes": traffic,
        "model": extrapolate(scaling, arguments.quick),
    }
    console = Console(width=150)
    for name, rows in scaling.items():
        console.print(scaling_table(name, rows))
    console.print(strategy_table(figures["strategies"]))
    received = ", ".join(f"{n} ranks {received / 1e3:.1f} kB" for n, received in traffic.items())
    console.print(f"Received per step and rank, 500 determinants of N2: {received}")
    console.print(model_table(figures["model"]))
    console.print(f"load average {load:.1f} before, {figures['load_after']:.1f} after, {os.cpu_count()} cores")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")


def run_ranks(n_ranks: int, task: dict[str, Any]) -> list[dict[str, Any]]:
    """What ``scaling_ranks.py`` measures on each rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "SCALING_RANKS": str(n_ranks), "NODE_RANK": "0"}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(HERE / "scaling_ranks.py"), folder, json.dumps(task)]
        environment = {**os.environ, **common, "OMP_NUM_THREADS": "1"}
        processes = [
            subprocess.Popen(
                command,
                env={**environment, "LOCAL_RANK": str(rank)},
                stdout=subprocess.DEVNULL,
                stderr=None if rank == 0 else subprocess.DEVNULL,
            )
            for rank in range(n_ranks)
        ]
        if any(process.wait() for process in processes):
            sys.exit("a rank failed")
        return [json.loads((Path(folder) / f"{n_ranks}-{rank}.json").read_text()) for rank in range(n_ranks)]


def summary(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """Median seconds by phase of the slowest rank (of the mean rank where ranks work alone), imbalance, bytes."""
    result: dict[str, Any] = {"parameters": ranks[0]["parameters"]}
    for kind in ("alone", "strong", "weak"):
        seconds = {}
        for phase in ranks[0][kind]["seconds"]:
            by_rank = [rank[kind]["seconds"][phase] for rank in ranks]
            over = statistics.mean if kind == "alone" else max
            seconds[phase] = [
                statistics.median(over(times[clock] for times in step) for step in zip(*by_rank, strict=True))
                for clock in (WALL, CPU)
            ]
        unique = [rank[kind]["unique"] for rank in ranks]
        result[kind] = {
            "seconds": seconds,
            "unique": unique,
            "imbalance_unique": max(unique) / statistics.mean(unique),
            "imbalance_time": imbalance([rank[kind]["seconds"] for rank in ranks]),
            "received_bytes": ranks[0][kind]["received_bytes"],
        }
    return result


def imbalance(ranks: list[dict[str, list[list[float]]]]) -> float:
    """Largest rank over mean, of CPU seconds per step."""
    work = [statistics.median(map(sum, zip(*cpu_times(rank), strict=True))) for rank in ranks]
    return max(work) / statistics.mean(work)


def cpu_times(rank: dict[str, list[list[float]]]) -> list[list[float]]:
    return [[times[CPU] for times in steps] for phase, steps in rank.items() if phase != "communication"]


def scaling_table(name: str, rows: dict[str, Any]) -> Table:
    unique = {kind: sum(rows[kind]["unique"]) for kind in ("strong", "weak")}
    table = Table(
        title=f"{name}: {unique['strong']:,} determinants shared (strong), {unique['weak']:,} (weak), 2 ranks",
        caption=f"weak: imbalance {rows['weak']['imbalance_unique']:.3f} in determinants, "
        f"{rows['weak']['imbalance_time']:.3f} in CPU time; {rows['weak']['received_bytes'] / 1e6:.2f} MB received",
    )
    for heading in ("phase", "alone / ms", "strong / ms", "weak / ms", "strong eff.", "weak eff.", "weak eff., CPU"):
        table.add_column(heading, justify="left" if heading == "phase" else "right")
    phases = list(rows["alone"]["seconds"])
    for phase in [*phases, "step"]:
        chosen = phases if phase == "step" else [phase]
        wall, cpu = (
            {kind: sum(rows[kind]["seconds"][p][clock] for p in chosen) for kind in ("alone", "strong", "weak")}
            for clock in (WALL, CPU)
        )
        table.add_row(
            phase,
            *(f"{1e3 * wall[kind]:.1f}" for kind in ("alone", "strong", "weak")),
            f"{wall['alone'] / wall['strong'] / 2:.0%}",
            f"{wall['alone'] / wall['weak']:.0%}",
            f"{cpu['alone'] / cpu['weak']:.0%}",
        )
    return table


def strategy_medians(ranks: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Median seconds of the slowest rank by strategy and phase, as logged."""
    return {
        strategy: {phase: statistics.median(step[phase] for step in steps) for phase in steps[0]}
        for strategy, steps in ranks[0]["strategies"].items()
    }


def strategy_table(rows: dict[str, dict[str, float]]) -> Table:
    table = Table(title="Strategies on 2 ranks, N2: ms per step, as logged by the run")
    phases = list(rows["ddp"])
    for heading in ("strategy", *phases, "step", "over DDP"):
        table.add_column(heading, justify="left" if heading == "strategy" else "right")
    whole = {strategy: sum(seconds.values()) for strategy, seconds in rows.items()}
    for strategy, seconds in rows.items():
        figures = [f"{1e3 * seconds[phase]:.1f}" for phase in phases]
        table.add_row(strategy, *figures, f"{1e3 * whole[strategy]:.1f}", f"{whole[strategy] / whole['ddp']:.2f}")
    return table


if __name__ == "__main__":
    main()
