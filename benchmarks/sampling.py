"""Speed, memory and balance of the samplers: ``python benchmarks/sampling.py [--quick] [--json FILE]``.

Speed is in CPU seconds of one thread, medians over alternating runs, beside the rate of a 1024³ product of that run.
The share of the peak is (operations of an ideal cached decode of the nodes visited) / (seconds × that rate).
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from plain_decoder import sample_cached, sample_uncached
from rich.console import Console
from rich.table import Table
from sampling_balance import balance_rows, balance_table
from sampling_noise import noise_rows, noise_table

from nnqs_lightning.ansatz import TransformerAnsatz
from nnqs_lightning.chem import MolecularIntegrals
from nnqs_lightning.fock import unpack
from nnqs_lightning.nn.positional import NoPositional
from nnqs_lightning.sampling import GumbelTopKSampler, MultinomialSampler, Sampler, SystematicSampler

CASES = {
    "10 orb, d 64, 2 layers": (10, 7, 64, 2, 1e9),
    "14 orb, d 64, 2 layers": (14, 5, 64, 2, 1e4),
    "26 orb, d 64, 2 layers": (26, 5, 64, 2, 1e4),
    "26 orb, d 128, 4 layers": (26, 5, 128, 4, 1e4),
    "28 orb, d 128, 4 layers": (28, 7, 128, 4, 1e4),
}
POOL = 2**27


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="within a minute: fewer repeats, sizes up to 1e5")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, help="what to measure; everything if left out")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    console = Console(width=150)
    figures: dict[str, Any] = {"torch": torch.__version__, "numpy": np.__version__}
    for section in arguments.sections or SECTIONS:
        measure, table = SECTIONS[section]
        figures[section] = measure(arguments.quick)
        console.print(table(figures[section]))
        if arguments.json:
            arguments.json.write_text(json.dumps(figures, indent=1))


def flat_ansatz(n_orb: int, n_electrons: int, d_model: int, n_layers: int) -> TransformerAnsatz:
    """A state as it starts: all tokens about equally likely; it carries no positional scheme, nor does the baseline."""
    torch.manual_seed(0)
    integrals = MolecularIntegrals(
        h1e=np.diag(np.arange(float(n_orb))),
        eri=np.zeros((n_orb,) * 4),
        e_core=0.0,
        n_alpha=n_electrons,
        n_beta=n_electrons,
    )
    return TransformerAnsatz(
        integrals, d_model=d_model, n_heads=d_model // 16, n_layers=n_layers, positional=NoPositional
    )


def speed_rows(quick: bool) -> list[dict[str, Any]]:
    """Every case with every method, in turns."""
    rows = []
    for name, (n_orb, n_electrons, d_model, n_layers, n_walkers) in CASES.items():
        if not (quick and name.startswith("28")):
            ansatz = flat_ansatz(n_orb, n_electrons, d_model, n_layers)
            rows.append(
                {"case": name} | measure_speed(ansatz, int(min(n_walkers, 3000) if quick else n_walkers), quick)
            )
    return rows


def measure_speed(ansatz: TransformerAnsatz, n_walkers: int, quick: bool) -> dict[str, Any]:
    """Ours and the baseline; in full runs also multinomial, Gumbel and no cache."""

    def draw_by(sampler: Sampler) -> Callable[[int], int]:
        return lambda step: len(sampler.sample(ansatz, seed=0, step=step))

    ours = draw_by(SystematicSampler(n_walkers))
    n_unique, n_nodes, work = decoded(ansatz, lambda: ours(0))
    draws = {"ours": ours, "plain cached": lambda step: len(sample_cached(ansatz, n_walkers)[0])}
    if not quick:
        draws["multinomial"] = draw_by(MultinomialSampler(n_walkers))
        draws["Gumbel top-k"] = draw_by(GumbelTopKSampler(n_unique))
    rates, peak = alternate(draws, repeats=2 if quick else 3)
    if not quick and ansatz.decoder.head.in_features == 64:
        # Tens of times slower: one draw of a tenth of the walkers.
        start = time.process_time()
        n_plain = len(sample_uncached(ansatz, max(n_walkers // 10, 1))[0])
        rates["plain, no cache"] = n_plain / (time.process_time() - start)
    return {
        "unique": n_unique,
        "nodes": n_nodes,
        "gflops_peak": peak / 1e9,
        "share_of_peak": {key: rate / n_unique * work / peak for key, rate in rates.items()},
        "unique_per_second": rates,
        "nodes_per_second": rates["ours"] / n_unique * n_nodes,
    }


def decoded(ansatz: TransformerAnsatz, draw: Callable[[], int]) -> tuple[int, int, float]:
    """Unique determinants, nodes decoded and operations of an ideal cached decode of them."""
    nodes_at = [0] * ansatz.n_steps
    d_model, n_layers = ansatz.decoder.head.in_features, len(ansatz.decoder.blocks)
    original = ansatz.decoder.step

    def step(cache: Any, parents: torch.Tensor, tokens: torch.Tensor) -> Any:
        nodes_at[len(cache)] += len(parents)
        return original(cache, parents, tokens)

    ansatz.decoder.step = step  # type: ignore[method-assign]
    n_unique = draw()
    del ansatz.decoder.step
    work = sum(
        n * n_layers * (24 * d_model**2 + 4 * d_model * (depth + 1)) + n * 8 * d_model
        for depth, n in enumerate(nodes_at)
    )
    return n_unique, sum(nodes_at), float(work)


def alternate(draws: dict[str, Callable[[int], int]], repeats: int) -> tuple[dict[str, float], float]:
    """Median unique determinants a CPU second of each, taken in turns, and the rate of a 1024³ product between them."""
    a, b = torch.randn(2, 1024, 1024)
    rates: dict[str, list[float]] = {name: [] for name in draws}
    peaks = []
    for step in range(repeats + 1):
        with torch.inference_mode():
            for name, draw in draws.items():
                start = time.process_time()
                n_unique = draw(step)
                rates[name].append(n_unique / (time.process_time() - start))
            start = time.process_time()
            for _ in range(4):
                a @ b
            peaks.append(4 * 2 * 1024**3 / (time.process_time() - start))
    # The first round compiles and warms caches.
    return {name: statistics.median(values[1:]) for name, values in rates.items()}, statistics.median(peaks[1:])


def growth_rows(quick: bool) -> list[dict[str, Any]]:
    """Time and memory against the number of unique determinants, each size in a process of its own."""
    sizes = (1e3, 1e4, 3e4) if quick else (1e3, 1e4, 1e5, 1e6)
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        rows = [pool.apply(measure_growth, (size,)) for size in sizes]
    logs = [(math.log(row["unique"]), math.log(row["seconds"])) for row in rows]
    for row in rows:
        row["exponent"] = statistics.linear_regression(*zip(*logs, strict=True)).slope
    return rows


def measure_growth(n_walkers: float) -> dict[str, Any]:
    """CPU seconds and peak memory of one draw from 14 orbitals, 64 wide, with a pool of :data:`POOL` bytes."""
    torch.set_num_threads(1)
    ansatz = flat_ansatz(14, 7, 64, 2)
    SystematicSampler(1000, max_cache_bytes=POOL).sample(ansatz, seed=0, step=0)
    sampler = SystematicSampler(n_walkers, max_cache_bytes=POOL)
    _peak_bytes()
    before = _peak_bytes()
    start = time.process_time()
    n_unique = len(sampler.sample(ansatz, seed=0, step=1))
    seconds = time.process_time() - start
    return {"unique": n_unique, "seconds": seconds, "bound": POOL, "peak": _peak_bytes() - before}


def _peak_bytes() -> int:
    """Largest resident memory since the last call, and a fresh start for the next (Linux)."""
    status = Path("/proc/self/status").read_text()
    peak = int(status.split("VmHWM:")[1].split()[0]) * 1024
    Path("/proc/self/clear_refs").write_text("5")
    return peak


def precision_rows(quick: bool) -> list[dict[str, Any]]:
    """The same draw in chunks of 1,024 and of 100, which batched products round differently."""
    rows = []
    for dtype in (torch.float32, torch.float64):
        ansatz = flat_ansatz(14, 5, 64, 2).to(dtype)
        for n_walkers in (1e4,) if quick else (1e4, 1e6, 1e9):
            if n_walkers > 1e5:
                ansatz = flat_ansatz(10, 5, 64, 2).to(dtype)
            draws = [
                SystematicSampler(n_walkers, chunk_size=chunk).sample(ansatz, seed=0, step=0) for chunk in (1024, 100)
            ]
            counts = [
                dict(zip(map(bytes, draw.determinants.numpy()), draw.counts.tolist(), strict=True)) for draw in draws
            ]
            keys = counts[0].keys() | counts[1].keys()
            orbital_energies = torch.arange(float(ansatz.sector.n_orb), dtype=torch.float64)
            energies = [
                float(
                    draw.weights @ (unpack(draw.determinants, ansatz.sector.n_orb).sum(2).double() @ orbital_energies)
                )
                for draw in draws
            ]
            rows.append(
                {
                    "dtype": str(dtype).removeprefix("torch."),
                    "walkers": n_walkers,
                    "unique": len(draws[0]),
                    "counts_that_differ": sum(counts[0].get(key) != counts[1].get(key) for key in keys),
                    "determinants_that_differ": len(counts[0].keys() ^ counts[1].keys()),
                    "relative_energy_difference": abs(energies[0] / energies[1] - 1),
                }
            )
    return rows


def speed_table(rows: list[dict[str, Any]]) -> Table:
    """One line for each case and method."""
    table = Table(title="Speed on one thread, CPU seconds")
    for heading in (
        "case",
        "method",
        "unique",
        "unique/s",
        "ratio to plain cached",
        "share of peak",
        "GFLOP/s at 1024³",
    ):
        table.add_column(heading, justify="right")
    for row in rows:
        for method, rate in row["unique_per_second"].items():
            table.add_row(
                row["case"],
                method,
                f"{row['unique']:,}",
                f"{rate:,.0f}",
                f"{rate / row['unique_per_second']['plain cached']:.2f}",
                f"{row['share_of_peak'][method]:.1%}",
                f"{row['gflops_peak']:.0f}",
            )
    return table


def growth_table(rows: list[dict[str, Any]]) -> Table:
    """One line for each size."""
    table = Table(title=f"Growth, 14 orbitals, d 64, 2 layers: time ∝ unique^{rows[0]['exponent']:.3f}")
    for heading in (
        "unique",
        "seconds",
        "unique/s",
        "bound, MB",
        "peak above start, MB",
        "bytes beyond bound a determinant",
    ):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            f"{row['unique']:,}",
            f"{row['seconds']:.2f}",
            f"{row['unique'] / row['seconds']:,.0f}",
            f"{row['bound'] / 1e6:.0f}",
            f"{row['peak'] / 1e6:.0f}",
            f"{max(row['peak'] - row['bound'], 0) / row['unique']:.0f}",
        )
    return table


def precision_table(rows: list[dict[str, Any]]) -> Table:
    """One line for each type and number of walkers."""
    table = Table(title="The same draw decoded 1,024 and 100 prefixes at a time")
    for heading in ("dtype", "walkers", "unique", "counts that differ", "determinants that differ", "energy, relative"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            row["dtype"],
            f"{row['walkers']:.0e}",
            f"{row['unique']:,}",
            str(row["counts_that_differ"]),
            str(row["determinants_that_differ"]),
            f"{row['relative_energy_difference']:.1e}",
        )
    return table


SECTIONS: dict[str, tuple[Callable[[bool], list[dict[str, Any]]], Callable[[list[dict[str, Any]]], Table]]] = {
    "speed": (speed_rows, speed_table),
    "growth": (growth_rows, growth_table),
    "precision": (precision_rows, precision_table),
    "balance": (balance_rows, balance_table),
    "noise": (noise_rows, noise_table),
}

if __name__ == "__main__":
    main()
