"""Speed, memory and balance of the samplers: ``python benchmarks/sampling.py [--quick] [--json FILE]``.

Speed is in CPU seconds of one thread, medians over alternating runs, beside the rate of a 1024³ product of that run.
The share of the peak is (operations of an ideal cached decode of the nodes visited) / (seconds × that rate). Memory is
resident memory (VmHWM) above its level before the draw, in a fresh process for each draw.

The whole takes about ten minutes; ``--sections`` measures parts of it, of at most four minutes each, and adds them to
the figures in the file.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from plain_decoder import sample_cached, sample_uncached
from rich.console import Console
from rich.table import Table
from sampling_balance import balance_rows, balance_table
from sampling_noise import noise_rows, noise_table
from sampling_orders import FITS, fit_rows, fit_table, tree_rows, tree_table

from nnqs_lightning.ansatz import TransformerAnsatz
from nnqs_lightning.chem import MolecularIntegrals
from nnqs_lightning.fock import unpack
from nnqs_lightning.nn.cache import Block, KeyValuePool
from nnqs_lightning.nn.positional import NoPositional
from nnqs_lightning.sampling import GumbelTopKSampler, MultinomialSampler, Sampler, SystematicSampler

CASES = {
    "10 orb, d 64": (10, 7, 64, 2, 1e9),
    "14 orb, d 64": (14, 5, 64, 2, 1.05e4),
    "26 orb, d 64": (26, 5, 64, 2, 1.05e4),
    "26 orb, d 128": (26, 5, 128, 4, 1.05e4),
    "28 orb, d 128": (28, 7, 128, 4, 1.05e4),
}
"""Orbitals, electrons of each spin, width, layers, walkers."""
POOL = 2**27
RESULT_BYTES = 16 + 16 + 8 + 8
"""Of a determinant in a sample: words, log ψ, weight, walkers."""
CHUNKS = (4096, 5)
"""Numbers of prefixes decoded together whose products round differently."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="within a minute: fewer repeats, sizes up to 3e4")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, help="what to measure; everything if left out")
    parser.add_argument("--json", type=Path, help="add the figures to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    console = Console(width=150)
    figures: dict[str, Any] = {}
    if arguments.json and arguments.json.exists():
        figures = json.loads(arguments.json.read_text())
    figures |= {"torch": torch.__version__, "numpy": np.__version__}
    for section in arguments.sections or SECTIONS:
        measure, table = SECTIONS[section]
        start = time.perf_counter()
        figures[section] = measure(arguments.quick)
        console.print(table(figures[section]))
        console.print(f"[{section}: {time.perf_counter() - start:.0f} s]", markup=False)
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


def speed_row(name: str, quick: bool) -> list[dict[str, Any]]:
    """One case with every method, in turns; in full runs also multinomial, Gumbel, no cache, and memory."""
    n_orb, n_electrons, d_model, n_layers, walkers = CASES[name]
    n_walkers = int(min(walkers, 1000 if d_model == 64 else 300) if quick else walkers)
    ansatz = flat_ansatz(n_orb, n_electrons, d_model, n_layers)

    def draw_by(sampler: Sampler) -> Callable[[int], int]:
        return lambda step: len(sampler.sample(ansatz, seed=0, step=step))

    ours = draw_by(SystematicSampler(n_walkers))
    n_unique, n_nodes, work = decoded(ansatz, lambda: ours(0))
    draws = {"ours": ours, "plain cached": lambda step: len(sample_cached(ansatz, n_walkers)[0])}
    memory: dict[str, int] = {}
    if not quick:
        draws["multinomial"] = draw_by(MultinomialSampler(n_walkers))
        draws["Gumbel top-k"] = draw_by(GumbelTopKSampler(n_unique))
        measured = draws if d_model == 64 else draws.keys() - {"plain cached"}
        memory = {method: fresh_process(draw_memory, name, method, n_unique)["peak"] for method in measured}
    rates, peak = alternate(draws, repeats=3 if d_model == 64 and not quick else 1)
    if not quick:
        # Tens of times slower: one draw of fewer walkers.
        start = time.process_time()
        n_plain = len(sample_uncached(ansatz, max(n_walkers // (10 if d_model == 64 else 100), 1))[0])
        rates["plain, no cache"] = n_plain / (time.process_time() - start)
    row = {
        "case": name,
        "unique": n_unique,
        "nodes": n_nodes,
        "gflops_peak": peak / 1e9,
        "share_of_peak": {key: rate / n_unique * work / peak for key, rate in rates.items()},
        "unique_per_second": rates,
        "nodes_per_second": {key: rate / n_unique * n_nodes for key, rate in rates.items()},
        "peak_bytes": memory,
    }
    return [row]


def fresh_process(function: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """What ``function`` returns in a process of its own, whose heap nothing has been freed to."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def draw_memory(case: str, method: str, n_unique: int) -> dict[str, Any]:
    """Peak memory of one draw of a case."""
    n_orb, n_electrons, d_model, n_layers, n_walkers = CASES[case]
    ansatz = flat_ansatz(n_orb, n_electrons, d_model, n_layers)
    draws: dict[str, Callable[[int], Any]] = {
        "ours": lambda n: SystematicSampler(n).sample(ansatz, seed=0, step=0),
        "multinomial": lambda n: MultinomialSampler(n).sample(ansatz, seed=0, step=0),
        "Gumbel top-k": lambda n: GumbelTopKSampler(min(n, n_unique)).sample(ansatz, seed=0, step=0),
        "plain cached": lambda n: sample_cached(ansatz, n),
    }
    return {"peak": peak_memory(draws[method], int(n_walkers))}


def peak_memory(draw: Callable[[int], Any], size: int) -> int:
    """Largest resident memory during a draw, in bytes above that before it; a tiny draw loads code first."""
    torch.set_num_threads(1)
    with torch.inference_mode():
        draw(10)
        _peak_bytes()
        before = _peak_bytes()
        draw(size)
        return _peak_bytes() - before


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
                if step == 0 and name == "plain cached":
                    continue
                start = time.process_time()
                n_unique = draw(step)
                rates[name].append(n_unique / (time.process_time() - start))
            start = time.process_time()
            for _ in range(4):
                a @ b
            peaks.append(4 * 2 * 1024**3 / (time.process_time() - start))
    # The first round compiles and warms caches, which the plain decoder has no need of.
    rates = {name: values[-repeats:] for name, values in rates.items()}
    return {name: statistics.median(values) for name, values in rates.items()}, statistics.median(peaks[1:])


def growth_rows(quick: bool) -> list[dict[str, Any]]:
    """Time and memory against the number of unique determinants, each size in a process of its own."""
    sizes = (1e3, 1e4, 3e4) if quick else (1e3, 1e4, 1e5, 1.12e6)
    rows = [fresh_process(measure_growth, size) for size in sizes]
    logs = [(math.log(row["unique"]), math.log(row["seconds"])) for row in rows]
    for row in rows:
        row["exponent"] = statistics.linear_regression(*zip(*logs, strict=True)).slope
    return rows


def measure_growth(n_walkers: float) -> dict[str, Any]:
    """CPU seconds and peak memory of one draw from 14 orbitals, 64 wide, with a pool of at most :data:`POOL` bytes."""
    ansatz = flat_ansatz(14, 7, 64, 2)
    drawn: dict[str, Any] = {"bound": POOL}
    pools = largest_pool()

    def draw(size: int) -> None:
        sampler = SystematicSampler(size, max_cache_bytes=POOL)
        start = time.process_time()
        n_unique, nodes, _ = decoded(ansatz, lambda: len(sampler.sample(ansatz, seed=0, step=1)))
        drawn.update(unique=n_unique, nodes=nodes, seconds=time.process_time() - start)

    peak = peak_memory(draw, int(n_walkers))
    return drawn | {"peak": peak, "pool": pools[0], "beyond": peak - pools[0] - RESULT_BYTES * drawn["unique"]}


def largest_pool() -> list[int]:
    """One number, kept up to date: bytes of the largest pool of keys and values so far."""
    largest = [0]
    take = KeyValuePool.take

    def recorded(pool: KeyValuePool, n_rows: int) -> Block:
        block = take(pool, n_rows)
        largest[0] = max(largest[0], pool.rows.nbytes)
        return block

    KeyValuePool.take = recorded  # type: ignore[method-assign]
    return largest


def _peak_bytes() -> int:
    """Largest resident memory since the last call, and a fresh start for the next (Linux)."""
    status = Path("/proc/self/status").read_text()
    peak = int(status.split("VmHWM:")[1].split()[0]) * 1024
    Path("/proc/self/clear_refs").write_text("5")
    return peak


def precision_rows(quick: bool) -> list[dict[str, Any]]:
    """The same draw in chunks of two sizes."""
    rows = []
    for dtype, sizes in ((torch.float32, (1e4, 1e6, 1e9)), (torch.float64, (1e4, 1e6, 1e9, 1e12, 1e15))):
        for n_walkers in (1e3,) if quick else sizes:
            n_orb, electrons = (14, 5) if n_walkers < 1e5 else (10, 4)
            ansatz = flat_ansatz(n_orb, electrons, 64, 2).to(dtype)
            # As uneven as a trained network, or its products would hardly be told apart.
            torch.nn.init.normal_(ansatz.decoder.head.weight, std=0.3)
            rows.append(
                {"dtype": str(dtype).removeprefix("torch."), "walkers": n_walkers} | differences(ansatz, n_walkers)
            )
    return rows


def differences(ansatz: TransformerAnsatz, n_walkers: float) -> dict[str, Any]:
    """How two draws differ that are decoded in chunks of two sizes."""
    draws = [SystematicSampler(n_walkers, chunk_size=chunk).sample(ansatz, seed=0, step=0) for chunk in CHUNKS]
    counts = [dict(zip(map(bytes, draw.determinants.numpy()), draw.counts.tolist(), strict=True)) for draw in draws]
    keys = counts[0].keys() | counts[1].keys()
    levels = torch.arange(float(ansatz.sector.n_orb), dtype=torch.float64)
    energies = [
        float(draw.weights @ (unpack(draw.determinants, ansatz.sector.n_orb).sum(2).double() @ levels))
        for draw in draws
    ]
    return {
        "unique": len(draws[0]),
        "counts_that_differ": sum(counts[0].get(key) != counts[1].get(key) for key in keys),
        "determinants_that_differ": len(counts[0].keys() ^ counts[1].keys()),
        "largest_difference": max(abs(counts[0].get(key, 0) - counts[1].get(key, 0)) for key in keys),
        "relative_energy_difference": abs(energies[0] / energies[1] - 1),
    }


def speed_table(rows: list[dict[str, Any]]) -> Table:
    """One line for each case and method."""
    table = Table(title="Speed on one thread, CPU seconds")
    headings = ("case", "method", "unique", "nodes", "unique/s", "nodes/s", "× plain cached", "share of peak", "peak")
    for heading in (*headings, "memory, MB"):
        table.add_column(heading, justify="right")
    for row in rows:
        for method, rate in row["unique_per_second"].items():
            memory = row["peak_bytes"].get(method)
            table.add_row(
                row["case"],
                method,
                f"{row['unique']:,}",
                f"{row['nodes']:,}",
                f"{rate:,.0f}",
                f"{row['nodes_per_second'][method]:,.0f}",
                f"{rate / row['unique_per_second']['plain cached']:.2f}",
                f"{row['share_of_peak'][method]:.1%}",
                f"{row['gflops_peak']:.0f} GFLOP/s",
                "" if memory is None else f"{memory / 1e6:.0f}",
            )
    return table


def growth_table(rows: list[dict[str, Any]]) -> Table:
    """One line for each size."""
    table = Table(title=f"Growth, 14 orbitals, d 64, 2 layers: time ∝ unique^{rows[0]['exponent']:.3f}; memory in MB")
    headings = ("unique", "nodes", "seconds", "unique/s", "bound", "peak", "pool", "sample", "beyond these")
    for heading in (*headings, "bytes a node more than the line above"):
        table.add_column(heading, justify="right")
    for before, row in zip([None, *rows], rows, strict=False):
        slope = (row["beyond"] - before["beyond"]) / (row["nodes"] - before["nodes"]) if before else None
        table.add_row(
            f"{row['unique']:,}",
            f"{row['nodes']:,}",
            f"{row['seconds']:.2f}",
            f"{row['unique'] / row['seconds']:,.0f}",
            *(f"{row[key] / 1e6:.1f}" for key in ("bound", "peak", "pool")),
            f"{RESULT_BYTES * row['unique'] / 1e6:.1f}",
            f"{row['beyond'] / 1e6:.1f}",
            "" if slope is None else f"{slope:.1f}",
        )
    return table


def precision_table(rows: list[dict[str, Any]]) -> Table:
    """One line for each type and number of walkers."""
    table = Table(title=f"The same draw decoded {CHUNKS[0]:,} and {CHUNKS[1]} prefixes at a time")
    headings = ("dtype", "walkers", "unique", "counts that differ", "by at most", "determinants that differ")
    for heading in (*headings, "energy, relative"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            row["dtype"],
            f"{row['walkers']:.0e}",
            f"{row['unique']:,}",
            f"{row['counts_that_differ']:,}",
            f"{row['largest_difference']:,}",
            f"{row['determinants_that_differ']:,}",
            f"{row['relative_energy_difference']:.1e}",
        )
    return table


Section = tuple[Callable[[bool], list[dict[str, Any]]], Callable[[list[dict[str, Any]]], Table]]
SECTIONS: dict[str, Section] = {
    **{case.replace(" orb, d ", "/"): (partial(speed_row, case), speed_table) for case in CASES},
    "growth": (growth_rows, growth_table),
    "precision": (precision_rows, precision_table),
    "balance": (balance_rows, balance_table),
    "noise": (noise_rows, noise_table),
    "trees": (tree_rows, tree_table),
    **{f"fits-{molecule}": (partial(fit_rows, molecule), fit_table) for molecule in FITS},
}

if __name__ == "__main__":
    main()
