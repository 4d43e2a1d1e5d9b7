"""Scaling over ranks: ``python benchmarks/scaling.py [--quick] [--only SECTION ...] [--json FILE]``.

Two processes of one thread, pinned to a core each. Weak and strong scaling by phase, of determinants drawn from a
pretrained network; DDP against ZeRO-1, -2 and -3 in one run; bytes received on 1, 2 and 4 ranks; a model of the step on
many GPUs (``scaling_model.py``). Kinds of steps alternate; figures are those of the slowest rank in the quietest step.

A FILE that exists keeps the figures of sections that are not run now, so that a long run can be made in pieces. Wall
seconds need free cores, of which the load before and after tells; CPU seconds do not, but leave out waiting. Pretrained
networks are kept in the temporary folder.
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
from scaling_model import extrapolate, model_table
from scaling_tables import scaling_table, strategy_table, traffic_table

HERE = Path(__file__).parent
SCALING = {
    "H10": ("H10", 5_000, "gradient", 5),
    "N2": ("N2", 5_000, "gradient", 5),
    "N2/cc-pVDZ": ("N2/cc-pVDZ", 5_000, "gradient", 3),
    "H10, large": ("H10", 10_000, "gradient", 4),
    "N2/cc-pVDZ, large": ("N2/cc-pVDZ", 10_000, "gradient", 4),
    "N2, MinSR": ("N2", 5_000, "minsr", 5),
}
"""Molecule, determinants n, direction and repeats of each section."""
TRAFFIC = {
    "N2": ("N2", 1_000, "gradient", 1),
    "H10": ("H10", 1_000, "gradient", 1),
    "N2, MinSR": ("N2", 1_000, "minsr", 1),
}
KINDS = ["single", "whole", "beside", "strong", "weak"]
MODELLED = "N2/cc-pVDZ"
SECTIONS = [*SCALING, "strategies", "traffic", "model"]
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**33), "MALLOC_TRIM_THRESHOLD_": str(2**34)}
"""glibc gives large tensors back to the kernel and faults them in again, page by page, at every step; here it keeps
them. Processes wait for one another in the kernel otherwise."""
Ranks = list[dict[str, Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="within a minute: N2 alone, few determinants, few repeats")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS, metavar="SECTION", help=str(SECTIONS))
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    figures = {"load": {}, "scaling": {}, "torch": torch.__version__}
    if arguments.json and arguments.json.exists():
        figures |= json.loads(arguments.json.read_text())
    for section in ["quick"] if arguments.quick else arguments.only:
        load = os.getloadavg()[0]
        if arguments.quick:
            figures |= quick()
        else:
            measure(section, figures)
        figures["load"][section] = [load, os.getloadavg()[0]]
        if arguments.json:
            arguments.json.write_text(json.dumps(figures, indent=1) + "\n")
    show(figures, SECTIONS if arguments.quick else arguments.only)


def quick() -> dict[str, Any]:
    """Every section, small, in two groups of processes."""
    tasks = {
        "N2": ("scale", "N2", 1_000, "gradient", 3, KINDS),
        "strategies": ("strategies", "N2", 500, 1, 4),
        "traffic": ("scale", "N2", 500, "gradient", 1, ["strong", "weak"]),
    }
    two = run_ranks(2, tasks)
    four = run_ranks(4, {"traffic": tasks["traffic"]})
    scaling = {"N2": summary(two, "N2")}
    return {
        "scaling": scaling,
        "strategies": strategy_medians(two),
        "traffic": {"N2": {"2": received(two, "traffic"), "4": received(four, "traffic")}},
        "model": extrapolate(scaling["N2"], quick=True),
    }


def measure(section: str, figures: dict[str, Any]) -> None:
    """Put the figures of one section among the others."""
    if section in SCALING:
        figures["scaling"][section] = summary(run_ranks(2, {section: ("scale", *SCALING[section], KINDS)}), section)
    elif section == "strategies":
        figures[section] = strategy_medians(run_ranks(2, {section: (section, "N2", 5_000, 2, 8)}))
    elif section == "traffic":
        tasks = {name: ("scale", *task, ["strong", "weak"]) for name, task in TRAFFIC.items()}
        groups = {n: run_ranks(n, tasks) for n in (2, 4)}
        figures[section] = {name: {str(n): received(ranks, name) for n, ranks in groups.items()} for name in TRAFFIC}
    elif MODELLED not in figures["scaling"]:
        sys.exit(f"the section model needs the section {MODELLED}, in this run or in the file")
    else:
        figures[section] = extrapolate(figures["scaling"][MODELLED], quick=False)


def show(figures: dict[str, Any], sections: list[str]) -> None:
    console = Console(width=150)
    for name, rows in figures["scaling"].items():
        if name in sections:
            console.print(scaling_table(name, rows))
    tables = {"strategies": strategy_table, "traffic": traffic_table, "model": model_table}
    for section, table in tables.items():
        if section in sections:
            console.print(table(figures[section]))
    for section, (before, after) in figures["load"].items():
        console.print(f"{section}: load average {before:.1f} before, {after:.1f} after, {os.cpu_count()} cores")


def run_ranks(n_ranks: int, tasks: dict[str, Any]) -> Ranks:
    """What ``scaling_ranks.py`` measures on each rank, by the names of ``tasks``."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "SCALING_RANKS": str(n_ranks), "NODE_RANK": "0"}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(HERE / "scaling_ranks.py"), folder, json.dumps(tasks)]
        environment = {**os.environ, **common, **KEEP_MEMORY, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
        logs = [(Path(folder) / f"{rank}.log").open("w+") for rank in range(n_ranks)]
        processes = [
            subprocess.Popen(command, env={**environment, "LOCAL_RANK": str(rank)}, stdout=log, stderr=log)
            for rank, log in enumerate(logs)
        ]
        for process, log in zip(processes, logs, strict=True):
            if process.wait():
                log.seek(0)
                sys.exit(f"a rank failed:\n{log.read()[-3000:]}")
        return [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(n_ranks)]


def summary(ranks: Ranks, section: str) -> dict[str, Any]:
    """Seconds by phase of the slowest rank, imbalance, determinants, bytes and collectives of every kind."""
    kinds = {kind: [rank[section]["kinds"][kind] for rank in ranks] for kind in ranks[0][section]["kinds"]}
    return {
        "parameters": ranks[0][section]["parameters"],
        "kinds": {kind: kind_summary([rank for rank in by_rank if rank["steps"]]) for kind, by_rank in kinds.items()},
    }


def kind_summary(ranks: Ranks) -> dict[str, Any]:
    work = [[times["step"] for times in at_once] for at_once in zip(*(rank["cpu"] for rank in ranks), strict=True)]
    unique = [rank["unique"] for rank in ranks]
    return {
        "seconds": quietest([rank["steps"] for rank in ranks]),
        "cpu": quietest([rank["cpu"] for rank in ranks]),
        "unique": unique,
        "imbalance_unique": max(unique) / statistics.mean(unique),
        "imbalance_time": statistics.median(max(times) / statistics.mean(times) for times in work),
        "bytes": ranks[0]["bytes"],
        "collectives": ranks[0]["collectives"],
    }


def quietest(ranks: list[list[dict[str, float]]]) -> dict[str, float]:
    """By phase, the slowest rank's seconds in the step that took it least: what disturbs a step only adds to it."""
    steps = list(zip(*ranks, strict=True))
    return {phase: min(max(times[phase] for times in at_once) for at_once in steps) for phase in steps[0][0]}


def received(ranks: Ranks, section: str) -> dict[str, Any]:
    """Bytes that the first rank received in a step, by phase."""
    return {
        kind: {"unique": sum(rank[section]["kinds"][kind]["unique"] for rank in ranks), "bytes": values["bytes"]}
        for kind, values in ranks[0][section]["kinds"].items()
    }


def strategy_medians(ranks: Ranks) -> dict[str, dict[str, float]]:
    """Median seconds of the slowest rank by strategy and phase, as logged."""
    return {
        strategy: {phase: statistics.median(step[phase] for step in steps) for phase in steps[0]}
        for strategy, steps in ranks[0]["strategies"].items()
    }


if __name__ == "__main__":
    main()
