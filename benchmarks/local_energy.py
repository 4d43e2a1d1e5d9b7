"""Speed of local energies: connected elements a second, growth with the set, memory, parts of it, PySCF beside them.

"Elements" counts what the plain algorithm would visit: determinants × connected states of each, in the set or not. All
figures are CPU seconds of one thread, the least of several runs; "peak MB" is how far one evaluation raises the
resident memory, the set itself not counted. Run it with OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from functools import partial
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch
from local_energy_measure import cpu_seconds, peak_megabytes
from local_energy_parts import filter_rows, lookup_rows, screening_rows
from local_energy_sets import DATA, heaviest, integrals, named_set
from rich.console import Console
from rich.table import Table
from torch import Tensor

from nnqs_lightning.fock.compiled import jit
from nnqs_lightning.hamiltonian import MolecularHamiltonian, Strategy
from nnqs_lightning.hamiltonian.connected import connect, excitations
from nnqs_lightning.vmc.local_energy import IncrementalSubspaceLocalEnergy

KERNEL_SETS = {"N2 STO-3G": 14_400, "H2O 6-31G": 100_000, "N2 cc-pVDZ, frozen core": 100_000}
GROWTH_SYSTEMS = ("H10 STO-6G", "N2 STO-3G", "N2 cc-pVDZ", "Fe2S2")
SLOW = (Strategy.hash, Strategy.pair_scan)
"""Timed on a few rows only."""


def main() -> None:
    """Measure, show, and write on request."""
    tables = {
        "kernels": ("Kernels", kernel_rows),
        "growth": ("Growth, strategy auto", growth_rows),
        "incremental": ("Kept Hamiltonian, 3% of the set replaced at each step", incremental_rows),
        "screening": ("Connected states above a threshold, per determinant", screening_rows),
        "filter": ("Bitmap before the hash table", partial(filter_rows, KERNEL_SETS)),
        "lookup": ("Look-ups of determinants", lookup_rows),
        "pyscf": ("PySCF on the same job", pyscf_rows),
    }
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="within a minute: sets of 1e4 at most, fewer systems")
    parser.add_argument("--json", type=Path, help="write the figures to this file, beside those of other tables")
    parser.add_argument("--only", nargs="+", choices=tables, default=list(tables), help="tables to measure")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    figures = json.loads(arguments.json.read_text()) if arguments.json and arguments.json.exists() else {}
    figures["versions"] = {"torch": torch.__version__, "numba": numba.__version__, "numpy": np.__version__}
    console = Console(width=150)
    for name in arguments.only:
        title, measure = tables[name]
        figures[name] = measure(arguments.quick)
        console.print(table(title, figures[name]))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1))


@jit
def enumerate_rows(determinants, tables, n_connected):
    """The ceiling: enumerate all connected states with their elements, look nothing up, sum."""
    n_orb, n_words = tables.h1e.shape[0], determinants.shape[2]
    alpha, beta = excitations(n_orb, n_words), excitations(n_orb, n_words)
    states = np.empty((n_connected, 2, n_words), dtype=np.uint64)
    elements = np.empty(n_connected)
    total = 0.0
    for row in range(determinants.shape[0]):
        count = connect(determinants[row], tables, 0.0, alpha, beta, states, elements)
        total += elements[:count].sum()
    return total


def kernel_rows(quick: bool) -> list[dict[str, Any]]:
    """Every strategy and the ceiling on the three sets."""
    rows = []
    for name, size in KERNEL_SETS.items():
        hamiltonian, determinants, log_psi = named_set(name, size, quick)
        some = torch.arange(0, len(determinants), max(1, len(determinants) // 300))
        words = hamiltonian.words(determinants[some])
        seconds = cpu_seconds(lambda h=hamiltonian, w=words: enumerate_rows(w, h.tables, h.n_connected), 3)
        ceiling = len(some) * hamiltonian.n_connected / seconds
        rows.append(
            kernel_row(name, determinants, "enumerate, no look-up (ceiling)", len(some), seconds, hamiltonian, ceiling)
        )
        costs = hamiltonian.strategy_costs(determinants)
        auto = min(costs, key=lambda strategy: costs[strategy])
        for strategy, cost in costs.items():
            wanted = some if strategy in SLOW else torch.arange(len(determinants))
            if not math.isfinite(cost) or (quick and cost > 5 and strategy not in SLOW):
                continue
            seconds = cpu_seconds(
                lambda h=hamiltonian, d=determinants, p=log_psi, r=wanted, s=strategy: h.local_energies(d, p, r, s),
                2 if quick else 5,
            )
            label = f"{strategy.value}{' (auto)' if strategy is auto else ''}"
            rows.append(kernel_row(name, determinants, label, len(wanted), seconds, hamiltonian, ceiling))
            rows[-1]["model_s"] = round(cost * len(wanted) / len(determinants), 4)
    return rows


def kernel_row(
    name: str, determinants: Tensor, kernel: str, n_rows: int, seconds: float, hamiltonian: MolecularHamiltonian,
    ceiling: float,
) -> dict[str, Any]:  # fmt: skip
    """One line of the kernel table."""
    rate = n_rows * hamiltonian.n_connected / seconds
    return {
        "system": name,
        "set": len(determinants),
        "connected": hamiltonian.n_connected,
        "kernel": kernel,
        "seconds": round(seconds, 4),
        "M elements/s": round(rate / 1e6, 1),
        "k determinants/s": round(n_rows / seconds / 1e3, 2),
        "of ceiling": round(rate / ceiling, 2),
    }


def growth_rows(quick: bool) -> list[dict[str, Any]]:
    """Seconds a step against the size of the set; the exponent is that of the last tenfold."""
    rows = []
    for name in GROWTH_SYSTEMS[:: 3 if quick else 1]:
        if name in ("N2 cc-pVDZ", "Fe2S2") and not DATA.is_dir():
            print(f"left out {name}: no folder {DATA}")
            continue
        hamiltonian = MolecularHamiltonian(integrals(name))
        before = None
        for size in (1_000, 10_000) if quick else (1_000, 10_000, 100_000):
            if size > 10 * hamiltonian.sector.size:
                continue
            determinants, log_psi = heaviest(hamiltonian, min(size, hamiltonian.sector.size))
            n = len(determinants)
            seconds = cpu_seconds(lambda h=hamiltonian, d=determinants, p=log_psi: h.local_energies(d, p), 3)
            exponent = math.log(seconds / before[1]) / math.log(n / before[0]) if before else math.nan
            before = (n, seconds)
            rows.append(
                {
                    "system": name,
                    "set": n,
                    "seconds": round(seconds, 4),
                    "µs/determinant": round(seconds / n * 1e6, 2),
                    "growth exponent": round(exponent, 2),
                    "peak MB": peak_megabytes(lambda h=hamiltonian, d=determinants, p=log_psi: h.local_energies(d, p)),
                }
            )
    return rows


def incremental_rows(quick: bool) -> list[dict[str, Any]]:
    """Steps of a drifting set: what was kept, and the time against computing anew."""
    hamiltonian = MolecularHamiltonian(integrals("N2 cc-pVDZ, frozen core"))
    size = 10_000 if quick else 50_000
    pool, log_psi = heaviest(hamiltonian, size + size // 5)
    engine = IncrementalSubspaceLocalEnergy()
    generator = torch.Generator().manual_seed(2)
    core, rest = torch.arange(size - size // 30), torch.arange(size - size // 30, len(pool))
    rows = []
    for step in range(4):
        chosen = torch.cat([core, rest[torch.randperm(len(rest), generator=generator)[: size // 30]]])
        start = time.process_time()
        _, stats = engine.values(hamiltonian, pool[chosen], log_psi[chosen], torch.arange(len(chosen)))
        kept = time.process_time() - start
        anew = cpu_seconds(lambda c=chosen: hamiltonian.local_energies(pool[c], log_psi[c]), 1)
        rows.append(
            {
                "step": step,
                "set": len(chosen),
                "rows kept": round(stats["local_energy/kept_rows"], 3),
                "seconds": round(kept, 3),
                "anew, seconds": round(anew, 3),
                "ratio": round(anew / kept, 2),
            }
        )
    return rows


def pyscf_rows(quick: bool) -> list[dict[str, Any]]:
    """PySCF's contractions: of a whole space, and of a product of string lists as selected CI keeps it."""
    from pyscf import fci
    from pyscf.fci import cistring, selected_ci

    whole = integrals("N2 STO-3G")
    electrons = (whole.n_alpha, whole.n_beta)
    n_strings = [cistring.num_strings(whole.n_orb, n) for n in electrons]
    vector = np.random.default_rng(0).normal(size=n_strings)
    h2e = fci.direct_spin1.absorb_h1e(whole.h1e, whole.eri, whole.n_orb, electrons, 0.5)
    link = tuple(cistring.gen_linkstr_index_trilidx(range(whole.n_orb), n) for n in electrons)
    seconds = cpu_seconds(lambda: fci.direct_spin1.contract_2e(h2e, vector, whole.n_orb, electrons, link), 5)
    job = "fci.direct_spin1.contract_2e (real ψ)"
    rows = [pyscf_row("N2 STO-3G", job, vector.size, seconds, MolecularHamiltonian(whole))]
    hamiltonian = MolecularHamiltonian(integrals("H2O 6-31G"))
    held = hamiltonian.integrals
    determinants, _ = heaviest(hamiltonian, 3_000 if quick else 30_000)
    strings = [np.unique(determinants[:, spin, 0].numpy()) for spin in (0, 1)]
    electrons = (held.n_alpha, held.n_beta)
    h2e = fci.direct_spin1.absorb_h1e(held.h1e, held.eri, held.n_orb, electrons, 0.5)
    vector = selected_ci._as_SCIvector(np.random.default_rng(0).normal(size=[len(s) for s in strings]), strings)
    links = selected_ci._all_linkstr_index(strings, held.n_orb, electrons)
    seconds = cpu_seconds(lambda: selected_ci.contract_2e(h2e, vector, held.n_orb, electrons, links), 2)
    job = f"selected_ci.contract_2e (real ψ, {vector.size} string pairs)"
    rows.append(pyscf_row("H2O 6-31G", job, len(determinants), seconds, hamiltonian))
    return rows


def pyscf_row(name: str, job: str, n: int, seconds: float, hamiltonian: MolecularHamiltonian) -> dict[str, Any]:
    """One line of the PySCF table."""
    return {
        "system": name,
        "job": job,
        "set": n,
        "seconds": round(seconds, 4),
        "M elements/s": round(n * hamiltonian.n_connected / seconds / 1e6, 1),
        "k determinants/s": round(n / seconds / 1e3, 2),
    }


def table(title: str, rows: list[dict[str, Any]]) -> Table:
    """Rows of figures as a rich table."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    result = Table(title=title)
    for column in columns:
        result.add_column(column, justify="left" if isinstance(rows[0].get(column), str) else "right")
    for row in rows:
        result.add_row(*(str(row.get(column, "–")) for column in columns))
    return result


if __name__ == "__main__":
    main()
