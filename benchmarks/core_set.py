"""Noise of the energy with and without a core set, at equal numbers of unique determinants.

    python benchmarks/core_set.py [--quick] [--json FILE] [--molecules h2o n2] [--draws 60]

ψ is fitted to CISD and then left alone, so that its local energies scatter. Walkers are chosen such that each sampler
is expected to find the same number of determinants; half of them or 90 % are the core, where there is one. "walkers"
weighs local energies by the sampler's own estimate of |ψ|², "amplitudes" is the Rayleigh quotient of ψ cut off outside
the set.
"""

# ruff: noqa: E402 - the number of threads is read when the libraries are imported
from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

for variable in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[variable] = "1"

import torch
import yaml
from rich.console import Console
from rich.table import Table
from torch import Tensor

from nnqs_lightning.ansatz import TransformerAnsatz
from nnqs_lightning.chem import Molecule
from nnqs_lightning.fock.lookup import DeterminantTable
from nnqs_lightning.hamiltonian import MolecularHamiltonian
from nnqs_lightning.optim import Pretraining
from nnqs_lightning.sampling import CoreSetSampler, MultinomialSampler, Sampler, SumOverStates, SystematicSampler
from nnqs_lightning.vmc import ExactLocalEnergy
from nnqs_lightning.vmc.estimators import weighted_mean

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
SAMPLERS = {"multinomial": MultinomialSampler, "systematic": SystematicSampler}


@dataclass
class Noise:
    """Of the energy estimates of many draws, in millihartree."""

    molecule: str
    sampler: str
    core: int
    walkers: int
    unique: float
    walkers_std_mha: float
    walkers_bias_mha: float
    amplitudes_std_mha: float
    amplitudes_bias_mha: float


@dataclass
class State:
    """A wave function that is left alone, and its exact local energies."""

    ansatz: TransformerAnsatz
    hamiltonian: MolecularHamiltonian
    table: DeterminantTable
    p: Tensor
    local: Tensor
    energy: float


def fitted(name: str) -> State:
    settings = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())["model"]["system"]["init_args"]
    molecule = Molecule(**{**settings, "atoms": [tuple(a) for a in settings["atoms"]]})
    torch.manual_seed(1)
    ansatz = TransformerAnsatz(molecule.integrals(), d_model=16, n_layers=1, point_group=True).double()
    hamiltonian = MolecularHamiltonian(molecule.integrals())
    list(Pretraining(steps=6).run(ansatz, hamiltonian))
    whole = SumOverStates().sample(ansatz, seed=0, step=0)
    local = ExactLocalEnergy().evaluate(hamiltonian, ansatz, whole).values
    energy = weighted_mean(whole.weights, local).real.item()
    return State(ansatz, hamiltonian, DeterminantTable(whole.determinants), whole.weights, local, energy)


def walkers_for(unique: int, p: Tensor) -> int:
    """Independent walkers that are expected to find so many determinants of probabilities ``p``."""
    low, high = 0.0, 50.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        found = -torch.expm1(torch.exp(torch.tensor(middle)) * torch.log1p(-p.clamp(max=1 - 1e-12))).sum()
        low, high = (middle, high) if found < unique else (low, middle)
    return max(1, round(torch.tensor(low).exp().item()))


def noise(name: str, state: State, kind: str, unique: int, core: int, draws: int) -> Noise:
    rest = state.p.sort(descending=True).values[core:]
    walkers = walkers_for(unique - core, rest)
    sampler: Sampler = SAMPLERS[kind](walkers)
    if core:
        sampler = CoreSetSampler(sampler, core)
        sampler.observe(SumOverStates().sample(state.ansatz, seed=0, step=0))
    by_walkers, by_amplitudes, found = [], [], 0
    for step in range(draws):
        batch = sampler.sample(state.ansatz, seed=5, step=step)
        place = state.table.find(batch.determinants)
        by_walkers.append(float((batch.weights * state.local[place].real).sum()))
        within = state.hamiltonian.local_energies(batch.determinants, batch.log_psi)
        by_amplitudes.append(float((state.p[place] * within.real).sum() / state.p[place].sum()))
        found += len(batch)
    walker, amplitude = (
        1e3 * (torch.tensor(e, dtype=torch.float64) - state.energy) for e in (by_walkers, by_amplitudes)
    )
    return Noise(
        name, kind, core, walkers, found / draws,
        walker.std().item(), walker.mean().item(), amplitude.std().item(), amplitude.mean().item(),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="H2O alone, 20 draws")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--molecules", nargs="+", default=["h2o", "n2"])
    parser.add_argument("--draws", type=int, default=60)
    options = parser.parse_args()
    if options.quick:
        options.molecules, options.draws = ["h2o"], 20
    torch.set_num_threads(1)
    rows = []
    for name in options.molecules:
        state = fitted(name)
        for unique in (40, 80) if name == "h2o" else (100, 300):
            for kind in SAMPLERS:
                rows += [
                    noise(name, state, kind, unique, core, options.draws) for core in (0, unique // 2, unique * 9 // 10)
                ]
    table = Table(title=f"energy over {options.draws} draws, mHa")
    for column in ("molecule", "sampler", "core", "walkers", "unique", "walkers ±", "bias", "amplitudes ±", "bias "):
        table.add_column(column, justify="left" if column in ("molecule", "sampler") else "right")
    for row in rows:
        figures = (row.walkers_std_mha, row.walkers_bias_mha, row.amplitudes_std_mha, row.amplitudes_bias_mha)
        table.add_row(
            row.molecule, row.sampler, f"{row.core}", f"{row.walkers:.2g}", f"{row.unique:.0f}",
            *(f"{figure:+.3f}" for figure in figures),
        )  # fmt: skip
    Console(width=120).print(table)
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))


if __name__ == "__main__":
    main()
