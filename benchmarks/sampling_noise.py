"""Noise of energies: systematic against multinomial walkers, and sampling without replacement, on three molecules.

The state is the ground state with multiplicative noise on its amplitudes, ψ_D exp(0.2 ξ_D) with ξ normal, as a network
short of convergence gives: its local energies vary. Energies are Σ weights E_loc over independent draws.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from rich.table import Table
from sampling_trees import RecordedTree

from nnqs_lightning.chem.molecule import Molecule
from nnqs_lightning.fock import SampleBatch
from nnqs_lightning.hamiltonian import MolecularHamiltonian
from nnqs_lightning.sampling import GumbelTopKSampler, MultinomialSampler, Sampler, SystematicSampler

MOLECULES = {
    "LiH": [("Li", 0.0, 0.0, 0.0), ("H", 0.0, 0.0, 1.5957)],
    "H2O": [("O", 0.0, 0.0, 0.1173), ("H", 0.0, 0.7572, -0.4692), ("H", 0.0, -0.7572, -0.4692)],
    "N2": [("N", 0.0, 0.0, 0.0), ("N", 0.0, 0.0, 1.0977)],
}
DRAWS = 200


def noise_rows(quick: bool) -> list[dict[str, Any]]:
    """Standard deviations (hartree) of the energy of a draw, for several numbers of walkers."""
    rows = []
    for name in list(MOLECULES)[: 2 if quick else 3]:
        ansatz, local, energy = noisy_state(name)
        for n_walkers in (1000,) if quick else (1000, 30_000, 1_000_000):
            draws = 50 if quick else DRAWS
            systematic, unique = energies(SystematicSampler(n_walkers), ansatz, local, draws)
            multinomial, _ = energies(MultinomialSampler(n_walkers), ansatz, local, draws)
            gumbel, _ = energies(GumbelTopKSampler(round(unique)), ansatz, local, draws)
            rows.append(
                {
                    "molecule": name,
                    "walkers": n_walkers,
                    "unique": unique,
                    "exact_sum": energy,
                    "systematic": systematic.std(ddof=1),
                    "multinomial": multinomial.std(ddof=1),
                    "gumbel": gumbel.std(ddof=1),
                    "variance_ratio": (systematic.var(ddof=1) / multinomial.var(ddof=1)),
                    "systematic_z": (systematic.mean() - energy) / systematic.std(ddof=1) * draws**0.5,
                    "multinomial_z": (multinomial.mean() - energy) / multinomial.std(ddof=1) * draws**0.5,
                    "gumbel_bias": gumbel.mean() - energy,
                }
            )
    return rows


def noisy_state(name: str) -> tuple[RecordedTree, dict[bytes, float], float]:
    """The state, its local energies by determinant, and its energy."""
    hamiltonian = MolecularHamiltonian(Molecule(MOLECULES[name]).integrals())
    determinants = hamiltonian.sector.determinants()
    h = hamiltonian.sparse(determinants)
    from scipy.sparse.linalg import eigsh

    rng = np.random.default_rng(0)
    start = np.zeros(len(determinants))
    start[0] = 1.0
    _, vector = eigsh(h, k=1, which="SA", v0=start + 1e-3 * rng.standard_normal(len(start)))
    psi = vector[:, 0] * np.exp(0.2 * rng.standard_normal(len(start)))
    # What symmetry forbids is zero up to rounding.
    alive = np.abs(psi) > 1e-8
    psi = np.where(alive, psi, 0.0) / np.linalg.norm(psi[alive])
    local = (h @ psi)[alive] / psi[alive]
    kept = determinants[torch.from_numpy(alive)]
    ansatz = RecordedTree(hamiltonian.sector, kept, torch.from_numpy(psi[alive] ** 2))
    keys = [row.tobytes() for row in kept.numpy()]
    return ansatz, dict(zip(keys, local.tolist(), strict=True)), float(psi[alive] ** 2 @ local)


def energies(sampler: Sampler, ansatz: RecordedTree, local: dict[bytes, float], draws: int) -> tuple[Any, float]:
    """Energy of each draw, float64 [draws], and the mean number of unique determinants."""
    batches = [sampler.sample(ansatz, seed=0, step=step) for step in range(draws)]
    return np.array([_energy(batch, local) for batch in batches]), float(np.mean([len(batch) for batch in batches]))


def _energy(batch: SampleBatch, local: dict[bytes, float]) -> float:
    return float(batch.weights.numpy() @ np.array([local[row.tobytes()] for row in batch.determinants.numpy()]))


def noise_table(rows: list[dict[str, Any]]) -> Table:
    """One line for each molecule and number of walkers."""
    table = Table(title="Standard deviation of the energy of a draw, mHa (Gumbel: same number of unique determinants)")
    headings = ("molecule", "walkers", "unique", "systematic", "multinomial", "variance ratio", "Gumbel", "Gumbel bias")
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            row["molecule"],
            f"{row['walkers']:,}",
            f"{row['unique']:,.0f}",
            *(f"{1e3 * row[key]:.4f}" for key in ("systematic", "multinomial")),
            f"{row['variance_ratio']:.3f}",
            *(f"{1e3 * row[key]:.4f}" for key in ("gumbel", "gumbel_bias")),
        )
    return table
