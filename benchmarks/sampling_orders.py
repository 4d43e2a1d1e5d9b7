"""The order in which orbitals are decoded: how many nodes the tree of the same determinants has, and how well fits go.

Trees: the FCI states of N2/STO-3G and of the H10 chain (STO-6G), all determinants above 1e-12; N2/cc-pVDZ, 2e5
determinants of largest weight among the MP2 doubles and the products of two of them. Fits: the shipped configurations,
over seeds.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from itertools import combinations
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.table import Table
from sampling_balance import Tree

from nnqs_lightning.ansatz.orbital_order import AsGiven, FiedlerOrder, OrbitalOrder, RandomOrder, Reversed
from nnqs_lightning.ansatz.orbital_physics import orbital_energies
from nnqs_lightning.ansatz.tokens import tokenize
from nnqs_lightning.chem import Fcidump, MolecularIntegrals, Molecule
from nnqs_lightning.fock import Sector
from nnqs_lightning.sampling import prefix
from nnqs_lightning.sampling.leaves import Leaves

ROOT = Path(__file__).resolve().parents[1]
FCIDUMPS = ROOT.parent / "shared" / "data" / "fcidump"
ORDERS: dict[str, Callable[[MolecularIntegrals], OrbitalOrder]] = {
    "Reversed": Reversed,
    "AsGiven": AsGiven,
    "FiedlerOrder": FiedlerOrder,
    "RandomOrder": RandomOrder,
}
FITS = {"lih": 60, "h2o": 100}
"""Steps of a fit."""
SMALLEST = 1e-12
MOST = 200_000
SMALLEST_PRODUCT = 1e-5

Words = NDArray[np.int64]
Weights = NDArray[np.float64]


def tree_rows(quick: bool) -> list[dict[str, Any]]:
    """Nodes of the tree of the same determinants in every order."""
    rows = []
    for name, source in (("N2/STO-3G", n2), ("H10/STO-6G", h10), ("N2/cc-pVDZ", n2_ccpvdz)):
        if quick and name != "N2/STO-3G":
            continue
        if name != "N2/STO-3G" and not FCIDUMPS.is_dir():
            print(f"{name} is left out: there is no folder {FCIDUMPS}")
            continue
        integrals, determinants, weights = source()
        sector = Sector(integrals.n_orb, integrals.n_alpha, integrals.n_beta)
        for order, factory in ORDERS.items():
            permutation = torch.as_tensor(factory(integrals).permutation())
            keys = prefix.pack(tokenize(torch.from_numpy(determinants)[:, :, None], permutation))
            w = torch.from_numpy(weights)
            leaves = Leaves(keys, w, w)
            leaves.sort()
            nodes = int(Tree(leaves, sector).loads(keys[:0]).nodes)
            rows.append({"tree": name, "order": order, "unique": len(w), "nodes": nodes, "n_orb": integrals.n_orb})
    return rows


def n2() -> tuple[MolecularIntegrals, Words, Weights]:
    """The ground state near equilibrium."""
    return exact(Molecule([("N", 0.0, 0.0, 0.0), ("N", 0.0, 0.0, 1.0977)]).integrals())


def h10() -> tuple[MolecularIntegrals, Words, Weights]:
    """The ground state of a chain of hydrogen atoms."""
    return exact(Fcidump(FCIDUMPS / "h10_sto6g.FCIDUMP").integrals())


def exact(integrals: MolecularIntegrals) -> tuple[MolecularIntegrals, Words, Weights]:
    """Determinants int64 [N, 2] of the FCI ground state above :data:`SMALLEST`, and their weights."""
    from pyscf import fci

    n_orb, electrons = integrals.n_orb, (integrals.n_alpha, integrals.n_beta)
    _, vector = fci.direct_spin1.kernel(integrals.h1e, integrals.eri, n_orb, electrons)
    strings = [np.asarray(fci.cistring.make_strings(range(n_orb), n), dtype=np.int64) for n in electrons]
    alpha, beta = np.meshgrid(*strings, indexing="ij")
    weights = np.asarray(vector).ravel() ** 2
    kept = weights > SMALLEST
    return integrals, np.stack([alpha.ravel(), beta.ravel()], 1)[kept], weights[kept]


def n2_ccpvdz() -> tuple[MolecularIntegrals, Words, Weights]:
    """The aufbau determinant, MP2 doubles and their products."""
    integrals = Fcidump(FCIDUMPS / "n2_ccpvdz.FCIDUMP").integrals()
    flips, amplitudes = mp2_doubles(integrals)
    pairs, products = disjoint_products(flips, amplitudes)
    flips = np.concatenate([np.zeros((1, 2), np.int64), flips, pairs])
    amplitudes = np.concatenate([[1.0], amplitudes, products])
    largest_first = np.argsort(-np.abs(amplitudes))
    flips, amplitudes = flips[largest_first], amplitudes[largest_first]
    # Where several products make the same determinant, the largest stands for them.
    _, first = np.unique(flips, axis=0, return_index=True)
    first = np.sort(first)[:MOST]
    weights = amplitudes[first] ** 2
    aufbau = (1 << integrals.n_alpha) - 1
    return integrals, flips[first] ^ aufbau, weights / weights.sum()


def mp2_doubles(integrals: MolecularIntegrals) -> tuple[Words, Weights]:
    """Double excitations of a closed shell as the orbitals that change, int64 [N, 2] for α and β, and amplitudes."""
    n = integrals.n_alpha
    e = orbital_energies(integrals)
    v = integrals.eri[:n, n:, :n, n:]
    t = v / (e[:n, None, None, None] + e[None, None, :n, None] - e[None, n:, None, None] - e[None, None, None, n:])
    single = (1 << np.arange(n))[:, None] | (1 << np.arange(n, len(e)))[None, :]
    alpha, beta = np.broadcast_arrays(single[:, :, None, None], single[None, None])
    flips, amplitudes = [np.stack([alpha.ravel(), beta.ravel()], 1)], [t.ravel()]
    i, j = np.array(list(combinations(range(n), 2))).T
    a, b = np.array(list(combinations(range(len(e) - n), 2))).T
    i, j, a, b = i[:, None], j[:, None], a[None, :], b[None, :]
    both = (single[i, a] | single[j, b]).ravel()
    for column in range(2):
        flips.append(np.stack([both, np.zeros_like(both)][:: 1 - 2 * column], 1))
        amplitudes.append((t[i, a, j, b] - t[i, b, j, a]).ravel())
    kept = np.abs(np.concatenate(amplitudes)) > SMALLEST_PRODUCT
    return np.concatenate(flips)[kept], np.concatenate(amplitudes)[kept]


def disjoint_products(flips: Words, amplitudes: Weights) -> tuple[Words, Weights]:
    """Pairs of excitations without a common orbital whose amplitudes' product exceeds :data:`SMALLEST_PRODUCT`."""
    order = np.argsort(-np.abs(amplitudes))
    flips, sizes = flips[order], np.abs(amplitudes[order])
    partners = np.searchsorted(-sizes, -SMALLEST_PRODUCT / sizes)
    pairs, products = [], []
    for p in range(len(sizes)):
        q = slice(p + 1, partners[p])
        if q.stop <= q.start:
            break
        disjoint = ((flips[q] & flips[p]) == 0).all(1)
        pairs.append((flips[q] | flips[p])[disjoint])
        products.append(sizes[p] * sizes[q][disjoint])
    return np.concatenate(pairs), np.concatenate(products)


def tree_table(rows: list[dict[str, Any]]) -> Table:
    """One line for each tree and order."""
    table = Table(title="Orbital order: nodes of the tree of the same determinants")
    for heading in ("tree", "determinants", "order", "nodes", "a determinant", "a token", "times Reversed"):
        table.add_column(heading, justify="right")
    best = {row["tree"]: row["nodes"] for row in rows if row["order"] == "Reversed"}
    for row in rows:
        per_determinant = row["nodes"] / row["unique"]
        table.add_row(
            row["tree"],
            f"{row['unique']:,}",
            row["order"],
            f"{row['nodes']:,}",
            f"{per_determinant:.2f}",
            f"{per_determinant / row['n_orb']:.3f}",
            f"{row['nodes'] / best[row['tree']]:.2f}",
        )
    return table


def fit_rows(molecule: str, quick: bool) -> list[dict[str, Any]]:
    """Errors of fits of equal length."""
    steps = 20 if quick else FITS[molecule]
    return [
        {"molecule": molecule, "order": order, "seed": seed, "steps": steps} | fit(molecule, order, seed, steps)
        for order in list(ORDERS)[: 2 if quick else None]
        for seed in range(1, 2 if quick else 4)
    ]


def fit(molecule: str, order: str, seed: int, steps: int) -> dict[str, float]:
    """Error of the energy at the end, mHa, and CPU seconds."""
    # Every process that measures memory would load it otherwise.
    from nnqs_lightning.cli import main as command

    with TemporaryDirectory() as folder, redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        command(
            [
                "fit",
                *("--config", str(ROOT / "configs" / f"{molecule}.yaml")),
                *("--seed_everything", str(seed)),
                *("--trainer.default_root_dir", folder),
                *("--trainer.max_steps", str(steps)),
                *("--model.ansatz.orbital_order", f"nnqs_lightning.ansatz.orbital_order.{order}"),
            ]
        )
        summary = json.loads(Path(folder, "summary.json").read_text())
    return {"error_mha": summary["error_mha"], "cpu_s": summary["cpu_s"], "unique": summary["unique"]}


def fit_table(rows: list[dict[str, Any]]) -> Table:
    """One line for each molecule and order."""
    table = Table(title="Orbital order: error of the energy after a short fit as shipped, mHa")
    for heading in ("molecule", "steps", "order", "median", "of each seed", "median CPU s"):
        table.add_column(heading, justify="right")
    for molecule, order in dict.fromkeys((row["molecule"], row["order"]) for row in rows):
        of = [row for row in rows if (row["molecule"], row["order"]) == (molecule, order)]
        errors = [row["error_mha"] for row in of]
        table.add_row(
            molecule,
            str(of[0]["steps"]),
            order,
            f"{median(errors):.4f}",
            ", ".join(f"{error:.4f}" for error in errors),
            f"{median(row['cpu_s'] for row in of):.1f}",
        )
    return table
