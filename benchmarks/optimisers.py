"""AdamW, SOAP, Muon, MinSR and SPRING side by side: CPU seconds and steps to 1.6 and 0.1 mHa, over seeds.

    python benchmarks/optimisers.py [--quick] [--json FILE] [--molecules h2 lih h2o n2] [--optimisers …] [--seeds 5]
        [--budget SECONDS] [--pretrain STEPS]

Every optimiser gets the same network, the same exact sums over the sector and the same CPU budget for a run; the
fitted start is off unless asked for. One thread.
"""

# ruff: noqa: E402 - the number of threads is read when the libraries are imported
from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

for variable in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[variable] = "1"

import torch
import yaml
from rich.console import Console
from rich.table import Table
from torch.optim import SGD, AdamW

from nnqs_lightning.ansatz import TransformerAnsatz
from nnqs_lightning.ansatz.phase import MLPPhase
from nnqs_lightning.chem import Molecule
from nnqs_lightning.hamiltonian import MolecularHamiltonian
from nnqs_lightning.optim import SOAP, Direction, EnergyGradient, MinSR, Muon, Pretraining, Spring
from nnqs_lightning.optim.schedules import InverseSqrt
from nnqs_lightning.sampling import SumOverStates
from nnqs_lightning.vmc import SubspaceLocalEnergy
from nnqs_lightning.vmc.estimators import estimate_energy

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
CHEMICAL, TIGHT = 1.6e-3, 1e-4
NATURAL = {"damping": 1e-3, "min_damping": 1e-6, "max_change": 0.1, "max_norm": 0.5, "energy_shift": 0.5}

OPTIMISERS: dict[str, tuple[Callable[[], Direction], Callable[..., torch.optim.Optimizer], bool]] = {
    "AdamW": (EnergyGradient, partial(AdamW, lr=3e-3, betas=(0.9, 0.99), weight_decay=0.0), True),
    "SOAP": (EnergyGradient, partial(SOAP, lr=3e-3), True),
    "Muon": (EnergyGradient, partial(Muon, lr=3e-3), True),
    "MinSR": (partial(MinSR, **NATURAL), partial(SGD, lr=1.0), False),
    "SPRING": (partial(Spring, momentum=0.9, **NATURAL), partial(SGD, lr=1.0, momentum=0.9), False),
}
"""Name → direction, optimiser, whether lr warms up over 50 steps and then falls as the inverse square root."""


@dataclass
class Run:
    molecule: str
    optimiser: str
    seed: int
    steps: int
    error_mha: float
    cpu_s: float
    steps_to_chemical: int | None = None
    cpu_s_to_chemical: float | None = None
    steps_to_tight: int | None = None
    cpu_s_to_tight: float | None = None


def system(name: str) -> tuple[Molecule, MolecularHamiltonian, float]:
    """Molecule of ``configs/name.yaml`` with its point group, and its FCI energy."""
    settings = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())["model"]["system"]["init_args"]
    molecule = Molecule(**{**settings, "atoms": [tuple(a) for a in settings["atoms"]], "symmetry": True})
    fci = molecule.reference_energies().fci
    assert fci is not None
    return molecule, MolecularHamiltonian(molecule.integrals()), fci


def train(name: str, optimiser: str, seed: int, budget: float, pretrain: int) -> Run:
    molecule, hamiltonian, fci = system(name)
    make_direction, make_optimiser, warms_up = OPTIMISERS[optimiser]
    torch.manual_seed(seed)
    ansatz = TransformerAnsatz(
        molecule.integrals(), d_model=16, n_heads=4, n_layers=1, phase=partial(MLPPhase, hidden=(64,)), point_group=True
    )
    direction, optimizer = make_direction(), make_optimiser(ansatz.parameters())
    schedule = InverseSqrt(optimizer, warmup_steps=50) if warms_up else None
    sampler, local_energy = SumOverStates(), SubspaceLocalEnergy()
    local_energy.evaluate(hamiltonian, ansatz, sampler.sample(ansatz, seed=seed, step=0))  # compiles
    start = time.process_time()
    if pretrain:
        list(Pretraining(steps=pretrain).run(ansatz, hamiltonian))
    run = Run(name, optimiser, seed, 0, float("nan"), 0.0)
    while run.cpu_s < budget and run.steps_to_tight is None:
        sample = sampler.sample(ansatz, seed=seed, step=run.steps)
        energies = local_energy.evaluate(hamiltonian, ansatz, sample)
        error = estimate_energy(energies, sample).mean - fci
        run.error_mha, run.cpu_s = 1e3 * error, time.process_time() - start
        if error < CHEMICAL and run.steps_to_chemical is None:
            run.steps_to_chemical, run.cpu_s_to_chemical = run.steps, run.cpu_s
        if error < TIGHT:
            run.steps_to_tight, run.cpu_s_to_tight = run.steps, run.cpu_s
        coefficients, _ = direction.coefficients(ansatz, sample, energies, optimizer.param_groups[0]["lr"])
        optimizer.zero_grad()
        Direction.surrogate(coefficients, ansatz(sample.determinants)).backward()
        direction.observe_gradient([p.grad for p in ansatz.parameters() if p.grad is not None])
        optimizer.step()
        if schedule is not None:
            schedule.step()
        run.steps += 1
    return run


def median(values: list[float | None]) -> str:
    """Median of those that arrived, and how many did not."""
    arrived = [v for v in values if v is not None]
    if not arrived:
        return "–"
    missing = len(values) - len(arrived)
    return f"{statistics.median(arrived):.3g}" + (f" ({missing} not)" if missing else "")


def show(console: Console, runs: list[Run], budget: float) -> None:
    table = Table(title=f"medians over seeds; at most {budget:g} CPU seconds a run")
    for column in ("molecule", "optimiser", "steps to 1.6 mHa", "CPU s", "steps to 0.1 mHa", "CPU s ", "last, mHa"):
        table.add_column(column, justify="left" if column in ("molecule", "optimiser") else "right")
    for molecule, optimiser in dict.fromkeys((r.molecule, r.optimiser) for r in runs):
        group = [r for r in runs if (r.molecule, r.optimiser) == (molecule, optimiser)]
        table.add_row(
            molecule,
            optimiser,
            median([r.steps_to_chemical for r in group]),
            median([r.cpu_s_to_chemical for r in group]),
            median([r.steps_to_tight for r in group]),
            median([r.cpu_s_to_tight for r in group]),
            f"{statistics.median(r.error_mha for r in group):.3f}",
        )
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="H2 and LiH, one seed, 4 CPU seconds a run")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--molecules", nargs="+", default=["h2", "lih", "h2o", "n2"])
    parser.add_argument("--optimisers", nargs="+", default=list(OPTIMISERS), choices=list(OPTIMISERS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--budget", type=float, default=60.0, help="CPU seconds a run")
    parser.add_argument("--pretrain", type=int, default=0, help="steps of a fit to CISD before each run")
    options = parser.parse_args()
    if options.quick:
        options.molecules, options.seeds, options.budget = ["h2", "lih"], 1, 4.0
    torch.set_num_threads(1)
    console = Console()
    runs: list[Run] = []
    for molecule in options.molecules:
        for optimiser in options.optimisers:
            for seed in range(options.seeds):
                run = train(molecule, optimiser, seed, options.budget, options.pretrain)
                console.print(f"{molecule} {optimiser} seed {seed}: {run.error_mha:.3f} mHa, {run.steps} steps")
                runs.append(run)
                if options.json:
                    options.json.write_text(json.dumps([asdict(run) for run in runs], indent=1))
    show(console, runs, options.budget)


if __name__ == "__main__":
    main()
