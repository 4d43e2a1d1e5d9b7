"""One rank of ``benchmarks/scaling.py``: times the phases of a step, alone and together with the other ranks.

Kinds of steps alternate, so that all of them see the same machine. A step of one rank pretends that there is no process
group; where it is the first rank's alone, the others wait at a barrier, which takes no processor time.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.strategies import DDPStrategy
from torch import distributed as dist

from nnqs_lightning import distributed
from nnqs_lightning.ansatz import TransformerAnsatz
from nnqs_lightning.chem import Molecule
from nnqs_lightning.fock import SampleBatch
from nnqs_lightning.optim import Direction, EnergyGradient, MinSR, Pretraining
from nnqs_lightning.sampling import SystematicSampler
from nnqs_lightning.training.datamodule import MonteCarloDataModule
from nnqs_lightning.training.module import NNQSModule
from nnqs_lightning.training.profiling import PHASES, Clock, PhaseTimes
from nnqs_lightning.vmc import SubspaceLocalEnergy

MOLECULES = {
    "H10": {"atoms": [("H", float(i), 0.0, 0.0) for i in range(10)], "basis": "sto-3g"},
    "N2": {"atoms": [("N", 0.0, 0.0, 0.0), ("N", 0.0, 0.0, 1.112)], "basis": "sto-3g"},
    "N2/cc-pVDZ": {"atoms": [("N", 0.0, 0.0, 0.0), ("N", 0.0, 0.0, 1.112)], "basis": "cc-pvdz"},
}
PRETRAINING = {"H10": (20, 1e-6), "N2": (14, 1e-6), "N2/cc-pVDZ": (15, 3e-3)}
"""Steps and threshold of the supervised start: a peaked |ψ|², as in training; a new network's is flat."""
KEPT = Path(tempfile.gettempdir()) / "nnqs_lightning-scaling"
"""Where pretrained networks are kept."""
DIRECTIONS = {"gradient": EnergyGradient, "minsr": partial(MinSR, energy_shift=0.5, min_damping=1e-6)}

# What a kind of step does with n determinants on P ranks: who takes part, and how many determinants there are.
FIRST, EACH, ALL = "the first rank", "each rank by itself", "all ranks together"
KINDS = {
    "single": (FIRST, 1),
    "whole": (FIRST, None),
    "beside": (EACH, 1),
    "strong": (ALL, 1),
    "weak": (ALL, None),
}
"""Who works, and on n (1) or P n (None) determinants."""
WARM_UP = 2


class Steps:
    """Training steps of one module with a fixed number of walkers; the parameters stay as they are."""

    def __init__(self, module: NNQSModule, direction: Direction, n_walkers: int) -> None:
        self.module = module
        self.direction = direction
        self.sampler = SystematicSampler(n_walkers)
        self.optimizer = torch.optim.AdamW(module.ansatz.parameters(), lr=0.0)
        self.clock = Clock()
        self.steps: list[dict[str, float]] = []
        """Wall seconds by phase; ``gather`` is time in collectives, ``step`` all of it."""
        self.cpu: list[dict[str, float]] = []
        """CPU seconds by phase."""
        self.bytes: dict[str, int] = {}
        """Received in the last step, by phase."""
        self.unique = self.calls = 0

    def run(self) -> None:
        """One step; what DDP does behind the backward pass is explicit here."""
        started, calls = time.perf_counter(), distributed.traffic.calls
        self.cpu.append({})
        ansatz, module = self.module.ansatz, self.module
        assert isinstance(ansatz, TransformerAnsatz)
        with self.phase("sample"), torch.no_grad():
            batch: SampleBatch = self.sampler.sample(ansatz, seed=0, step=len(self.steps))
            self.sampler.observe(batch)
        with self.phase("local_energy"):
            energies = module.local_energy.evaluate(module.hamiltonian, ansatz, batch)
        with self.phase("direction"):
            coefficients, _ = self.direction.coefficients(ansatz, batch, energies, 1.0)
        with self.phase("backward"):
            Direction.surrogate(coefficients, ansatz(batch.determinants)).backward()
        with self.phase("optimizer"):
            gradients = [p.grad for p in ansatz.parameters() if p.grad is not None]
            distributed.all_reduce_sum(torch.cat([gradient.flatten() for gradient in gradients]))
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.steps.append(self.clock.take() | {"step": time.perf_counter() - started})
        self.cpu[-1]["step"] = sum(self.cpu[-1].values())
        self.unique, self.calls = len(batch), distributed.traffic.calls - calls

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        before, cpu = distributed.traffic.received_bytes, time.process_time()
        with self.clock.phase(name):
            yield
        self.cpu[-1][name] = time.process_time() - cpu
        self.bytes[name] = distributed.traffic.received_bytes - before


@contextmanager
def alone() -> Iterator[None]:
    """No process group for the code inside."""
    initialised = distributed._initialised
    distributed._initialised = lambda: False
    try:
        yield
    finally:
        distributed._initialised = initialised


def scale(name: str, n_unique: int, direction: str, repeats: int, kinds: list[str]) -> dict[str, Any]:
    """Seconds by phase of every kind of step, determinants, bytes and collectives of its last one."""
    module = pretrained(name)
    ranks = distributed.world_size()
    walkers = {n: walkers_for(module, n) for n in {n_unique * (KINDS[kind][1] or ranks) for kind in kinds}}
    runs = {
        kind: Steps(module, DIRECTIONS[direction](), walkers[n_unique * (KINDS[kind][1] or ranks)]) for kind in kinds
    }
    for _ in range(WARM_UP + repeats):
        for kind, run in runs.items():
            dist.barrier()
            if KINDS[kind][0] is ALL:
                run.run()
            elif KINDS[kind][0] is EACH or distributed.rank() == 0:
                with alone():
                    run.run()
    return {
        "parameters": sum(p.numel() for p in module.ansatz.parameters()),
        "kinds": {
            kind: {
                "steps": run.steps[WARM_UP:],
                "cpu": run.cpu[WARM_UP:],
                "unique": run.unique,
                "bytes": run.bytes,
                "collectives": run.calls,
            }
            for kind, run in runs.items()
        },
    }


def walkers_for(module: NNQSModule, n_unique: int) -> int:
    """A number of walkers that finds ``n_unique`` determinants to within a percent, or as many as there are."""
    low, high = 1, 2**60
    with alone(), torch.no_grad():
        while high > 1.001 * low:
            middle = int((low * high) ** 0.5)
            # Of the steps that are timed, none: so the density of this draw shares out no other.
            found = len(SystematicSampler(middle).sample(module.ansatz, seed=1, step=0))
            if abs(found / n_unique - 1) < 0.01:
                return middle
            low, high = (middle, high) if found < n_unique else (low, middle)
    return high


class StepTimes(Callback):
    """Seconds of each phase of every step, as the run logs them."""

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        self.steps.append({phase: float(trainer.callback_metrics[f"time/{phase}"]) for phase in PHASES})


def strategies(name: str, n_unique: int, rounds: int, n_steps: int) -> dict[str, list[dict[str, float]]]:
    """Phases of whole fits under every strategy, in turns."""
    from nnqs_lightning.training.strategies import DeepSpeed

    results: dict[str, list[dict[str, float]]] = {"ddp": [], "zero-1": [], "zero-2": [], "zero-3": []}
    for _ in range(rounds):
        for strategy, steps in results.items():
            times = StepTimes()
            trainer = Trainer(
                accelerator="cpu",
                devices=distributed.world_size(),
                strategy=DDPStrategy() if strategy == "ddp" else DeepSpeed(stage=int(strategy[-1])),
                max_steps=n_steps + WARM_UP,
                max_epochs=-1,
                default_root_dir=sys.argv[1],
                limit_val_batches=0,
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                callbacks=[PhaseTimes(table=False), times],
            )
            sampler = SystematicSampler(target_unique=n_unique)
            trainer.fit(pretrained(name), datamodule=MonteCarloDataModule(sampler=sampler, seed=0))
            steps += times.steps[WARM_UP:]
    return results


def pretrained(name: str) -> NNQSModule:
    """A module with a network after the supervised start, which is kept for the next section."""
    torch.manual_seed(0)
    module = NNQSModule(
        system=Molecule(name=name.replace("/", "_"), **MOLECULES[name]),
        ansatz=TransformerAnsatz,
        local_energy=SubspaceLocalEnergy(),
        direction=EnergyGradient(),
        optimizer=partial(torch.optim.AdamW, lr=1e-3),
        pretraining=None,
    )
    steps, threshold = PRETRAINING[name]
    file = KEPT / f"{name.replace('/', '_')}-{steps}-{threshold:g}.pt"
    known = file.exists()
    dist.barrier()
    if known:
        module.ansatz.load_state_dict(torch.load(file))
        return module
    for _ in Pretraining(steps=steps, threshold=threshold).run(module.ansatz, module.hamiltonian):
        pass
    if distributed.rank() == 0:
        KEPT.mkdir(parents=True, exist_ok=True)
        torch.save(module.ansatz.state_dict(), file)
    return module


def main() -> None:
    folder, tasks = Path(sys.argv[1]), json.loads(sys.argv[2])
    rank, ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["SCALING_RANKS"])
    torch.set_num_threads(1)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    functions = {"scale": scale, "strategies": strategies}
    results = {section: functions[function](*arguments) for section, (function, *arguments) in tasks.items()}
    (folder / f"{rank}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
