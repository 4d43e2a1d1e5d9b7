"""One rank of ``benchmarks/scaling.py``: times the phases of a step alone and together with the other ranks.

Steps alone and steps together alternate, so that both see the same machine. A step alone pretends that there is no
process group: every rank then does the whole work by itself, at the same time as the others.
"""

from __future__ import annotations

import json
import os
import sys
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
from nnqs_lightning.optim import Direction, EnergyGradient
from nnqs_lightning.sampling import GumbelTopKSampler
from nnqs_lightning.training.datamodule import MonteCarloDataModule
from nnqs_lightning.training.module import NNQSModule
from nnqs_lightning.training.profiling import PHASES, PhaseTimes
from nnqs_lightning.vmc import SubspaceLocalEnergy

MOLECULES = {
    "H10": {"atoms": [("H", float(i), 0.0, 0.0) for i in range(10)], "basis": "sto-3g"},
    "N2": {"atoms": [("N", 0.0, 0.0, 0.0), ("N", 0.0, 0.0, 1.112)], "basis": "sto-3g"},
    "N2/cc-pVDZ": {"atoms": [("N", 0.0, 0.0, 0.0), ("N", 0.0, 0.0, 1.112)], "basis": "cc-pvdz"},
}
WARM_UP = 2


class Steps:
    """Training steps of one molecule with a fixed number of determinants; the parameters stay as they are."""

    def __init__(self, module: NNQSModule, n_unique: int) -> None:
        self.module = module
        self.sampler = GumbelTopKSampler(n_unique)
        self.optimizer = torch.optim.AdamW(module.ansatz.parameters(), lr=0.0)
        self.step = 0
        self.seconds: dict[str, list[tuple[float, float]]] = {}
        """Wall and CPU seconds of every step by phase."""
        self.unique = 0

    def run(self) -> None:
        """One step; what DDP does behind the backward pass is an explicit phase here."""
        ansatz, module = self.module.ansatz, self.module
        assert isinstance(ansatz, TransformerAnsatz)
        with self.phase("sample"), torch.no_grad():
            batch: SampleBatch = self.sampler.sample(ansatz, seed=0, step=self.step)
            self.sampler.observe(batch)
        with self.phase("local_energy"):
            energies = module.local_energy.evaluate(module.hamiltonian, ansatz, batch)
            coefficients, _ = EnergyGradient().coefficients(ansatz, batch, energies, 0.0)
        with self.phase("backward"):
            Direction.surrogate(coefficients, ansatz(batch.determinants)).backward()
        with self.phase("communication"):
            flat = torch.cat([p.grad.flatten() for p in ansatz.parameters() if p.grad is not None])
            distributed.all_reduce_sum(flat)
        with self.phase("optimizer"):
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.step += 1
        self.unique = len(batch)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.seconds.setdefault(name, []).append((time.perf_counter() - wall, time.process_time() - cpu))


@contextmanager
def alone() -> Iterator[None]:
    """No process group for the code inside."""
    initialised = distributed._initialised
    distributed._initialised = lambda: False
    try:
        yield
    finally:
        distributed._initialised = initialised


def scale(name: str, n_unique: int, repeats: int) -> dict[str, Any]:
    """Seconds by phase: n alone, n together (strong) and n per rank together (weak)."""
    module = build(name)
    ranks = distributed.world_size()
    steps = {
        "alone": Steps(module, n_unique),
        "strong": Steps(module, n_unique),
        "weak": Steps(module, n_unique * ranks),
    }
    received = {}
    for _ in range(WARM_UP + repeats):
        for kind, runner in steps.items():
            dist.barrier()
            before = distributed.traffic.received_bytes
            if kind == "alone":
                with alone():
                    runner.run()
            else:
                runner.run()
            received[kind] = distributed.traffic.received_bytes - before
    return {
        kind: {
            "seconds": {phase: times[WARM_UP:] for phase, times in runner.seconds.items()},
            "unique": runner.unique,
            "received_bytes": received[kind],
        }
        for kind, runner in steps.items()
    } | {"parameters": sum(p.numel() for p in module.ansatz.parameters())}


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
                limit_val_batches=0,
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                callbacks=[PhaseTimes(table=False), times],
            )
            trainer.fit(build(name), datamodule=MonteCarloDataModule(sampler=GumbelTopKSampler(n_unique), seed=0))
            steps += times.steps[WARM_UP:]
    return results


def build(name: str) -> NNQSModule:
    torch.manual_seed(0)
    return NNQSModule(
        system=Molecule(name=name.replace("/", "_"), **MOLECULES[name]),
        ansatz=TransformerAnsatz,
        local_energy=SubspaceLocalEnergy(),
        optimizer=partial(torch.optim.AdamW, lr=1e-3),
        pretraining=None,
    )


def main() -> None:
    folder, task = Path(sys.argv[1]), json.loads(sys.argv[2])
    rank, ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["SCALING_RANKS"])
    torch.set_num_threads(1)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    result: dict[str, Any] = {"scaling": {}}
    for name, n_unique, repeats in task["scaling"]:
        result["scaling"][name] = scale(name, n_unique, repeats)
    if task.get("strategies"):
        result["strategies"] = strategies(*task["strategies"])
    (folder / f"{ranks}-{rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
