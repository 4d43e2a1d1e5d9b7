"""One cell: the same module, data and Trainer as ``fit``, without logs, checkpoints and bars."""

from __future__ import annotations

import logging
import time
import warnings
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from jsonargparse import Namespace
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.cli import LightningArgumentParser
from lightning.pytorch.plugins.environments import LightningEnvironment

from nnqs_lightning.fock import SampleBatch
from nnqs_lightning.study.inspection import inspect
from nnqs_lightning.training.datamodule import EVALUATE, MonteCarloDataModule
from nnqs_lightning.training.metrics import EnergyMetrics
from nnqs_lightning.training.module import NNQSModule

QUIET = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
    "max_epochs": -1,
    "log_every_n_steps": 1,
    "use_distributed_sampler": False,
    "devices": 1,
}
"""Settings of the Trainer that a study decides."""


@dataclass
class Run:
    """A configured training run, not yet started."""

    module: NNQSModule
    data: MonteCarloDataModule
    trainer: Trainer
    recorder: Recorder

    def fit(self) -> None:
        """Train for ``trainer.max_steps`` steps, from the supervised start if there is one."""
        if self.module.pretraining is not None:
            # Here: the module would announce it, and leave a file behind, for every cell.
            for _ in self.module.pretraining.run(self.module.ansatz, self.module.hamiltonian):
                pass
            self.module.pretraining = None
        self.trainer.fit(self.module, self.data)

    def energy(self) -> dict[str, float]:
        """By ``data.evaluation_sampler`` and ``model.validation_energy``.

        Returns:
            ``mean`` and its ``error_bar`` (zero where the sampler enumerates) in hartree, ``variance`` in hartree².
        """
        # Not by trainer.validate: Lightning's log keeps single precision, 8 µHa at the energy of water.
        metric = EnergyMetrics()
        sample = self.sample()
        metric.update(
            self.module.validation_energy.evaluate(self.module.hamiltonian, self.module.ansatz, sample), sample
        )
        figures = metric.compute()
        return {name: float(figures[name]) for name in ("mean", "error_bar", "variance")}

    def sample(self) -> SampleBatch:
        """An evaluation sample of the wave function as it stands."""
        with torch.no_grad():
            return self.data.evaluation_sampler.sample(self.module.ansatz, seed=self.data.seed, step=0, stream=EVALUATE)

    def inspection(self) -> dict[str, Any] | None:
        """Attention and bias of the wave function as it stands; see :func:`inspect`."""
        return inspect(self.module.ansatz, self.sample())


@dataclass
class Recorder(Callback):
    """Keeps the energy and the variance of every step and the CPU time."""

    energies: list[float] = field(default_factory=list)
    variances: list[float] = field(default_factory=list)
    cpu_s: float = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._start = time.process_time()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        self.energies.append(float(trainer.callback_metrics["energy/mean"]))
        self.variances.append(float(trainer.callback_metrics["energy/variance"]))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.cpu_s = time.process_time() - self._start


@cache
def parser() -> LightningArgumentParser:
    """The sections of a cell, typed as in ``fit``."""
    sections = LightningArgumentParser(exit_on_error=False)
    sections.add_lightning_class_args(NNQSModule, "model")
    sections.add_lightning_class_args(MonteCarloDataModule, "data")
    sections.add_lightning_class_args(Trainer, "trainer", required=False)
    return sections


def parse(config: dict[str, Any]) -> Namespace:
    """A configuration as its types see it, completed by their defaults.

    Raises:
        ArgumentError: a key or a class that does not fit its type.
    """
    return parser().parse_object(deepcopy(config))  # which completes class_paths in place


def prepare(config: dict[str, Any], rng_seed: int) -> Run:
    """Build module, data and Trainer of a configuration.

    Raises:
        ArgumentError: a key or a class that does not fit its type.
        UserError: values that the classes refuse.
    """
    _hush()
    parsed = parse(config)
    seed_everything(rng_seed, verbose=False)
    built = parser().instantiate_classes(parsed)
    built.data.seed = rng_seed
    recorder = Recorder()
    callbacks = [*(built.trainer.callbacks or []), recorder]
    # A cell is one process, also within a SLURM job of many.
    own = {**QUIET, "callbacks": callbacks, "plugins": [LightningEnvironment()]}
    return Run(built.model, built.data, Trainer(**{**built.trainer.as_dict(), **own}), recorder)


def _hush() -> None:
    """Lightning announces devices and missing loaders; a thousand cells need to hear it less often."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module="lightning")
    warnings.filterwarnings("ignore", module="jsonargparse")
