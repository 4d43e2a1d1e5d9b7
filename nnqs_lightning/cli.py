"""The command line: LightningCLI with typed signatures as the schema and one-line errors."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentError
from lightning.pytorch import Trainer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from nnqs_lightning.errors import UserError
from nnqs_lightning.training.checkpoint import RunCheckpoint
from nnqs_lightning.training.cluster import cluster_environment
from nnqs_lightning.training.datamodule import MonteCarloDataModule
from nnqs_lightning.training.final_figures import FinalFigures
from nnqs_lightning.training.memory_watch import MemoryWatch
from nnqs_lightning.training.module import NNQSModule
from nnqs_lightning.training.prediction import PredictionWriter
from nnqs_lightning.training.preemption import Preemption, exit_if_cut_short
from nnqs_lightning.training.profiling import PhaseTimes
from nnqs_lightning.training.progress import EnergyLines, EnergyProgressBar
from nnqs_lightning.training.report import RunReport
from nnqs_lightning.training.resume import resolve_ckpt_path
from nnqs_lightning.training.run_logs import RunCSVLogger, RunTensorBoardLogger
from nnqs_lightning.training.stall import StallWatch
from nnqs_lightning.training.strategies import refuse_misfits
from nnqs_lightning.training.watch import EnergyWatch

TRAINER_DEFAULTS: dict[str, Any] = {
    "max_epochs": -1,
    "max_steps": 500,
    "log_every_n_steps": 1,
    "num_sanity_val_steps": 0,
    "use_distributed_sampler": False,
    "enable_model_summary": False,
}


DESCRIPTION = "Neural-network quantum states of molecules. Further commands, with --help: submit, consolidate, study."

CALLBACKS = {
    PhaseTimes: "profiling",
    EnergyWatch: "watch",
    StallWatch: "stall",
    RunReport: "report",
    FinalFigures: "figures",
    RunCheckpoint: "checkpoint",
}
"""Always there, configured under keys of their own, in this order."""


class NNQSCLI(LightningCLI):
    """``fit``, ``validate``, ``test`` and ``predict`` of one wave function.

    The run folder is ``trainer.default_root_dir``: config.yaml, metrics.csv, TensorBoard events, checkpoints/,
    summary.json and convergence.png go there, and figures.json and figures.png of ``validate``.
    """

    def __init__(self, args: Sequence[str]) -> None:
        parser_kwargs = {"parser_mode": "omegaconf", "exit_on_error": False}
        super().__init__(
            NNQSModule,
            MonteCarloDataModule,
            trainer_defaults=TRAINER_DEFAULTS,
            seed_everything_default=1,
            parser_kwargs={
                "prog": "nnqs_lightning",
                "description": DESCRIPTION,
                **parser_kwargs,
                **{name: dict(parser_kwargs) for name in self.subcommands()},
            },
            # A resumed run writes the same file again; a new run never gets as far as an old run's folder.
            save_config_kwargs={"overwrite": True},
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
            args=list(args),
        )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        for callback, key in CALLBACKS.items():
            parser.add_lightning_class_args(callback, key)

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        self.config = parser.parse_args(args)

    def _parse_ckpt_path(self) -> None:
        """Resolve ``last``, ``best``, ``auto`` and paths once the run folder is known, not here."""

    def before_instantiate_classes(self) -> None:
        config = self.config[self.subcommand]
        if config.data.seed is None:
            config.data.seed = int(config.seed_everything)
        refuse_misfits(config.trainer.strategy, config.trainer.precision)
        # Before any work: a rank that SLURM started wrongly would wait for the others for ever.
        self.environment = cluster_environment(config.trainer.devices, config.trainer.num_nodes)
        folder = config.trainer.default_root_dir
        if folder is None:
            folder = config.trainer.default_root_dir = str(Path("runs") / "latest")
        # An evaluation without a checkpoint of its own evaluates what the run folder holds.
        request = config.ckpt_path if self.subcommand == "fit" else config.ckpt_path or "auto"
        config.ckpt_path = resolve_ckpt_path(folder, request)

    def _prepare_subcommand_kwargs(self, subcommand: str) -> dict[str, Any]:
        kwargs = super()._prepare_subcommand_kwargs(subcommand)
        if subcommand == "fit":
            # As an attribute, set before the set-up hooks run: a resumed run needs no supervised start.
            self.trainer.ckpt_path = kwargs.pop("ckpt_path", None)
        if "verbose" in kwargs:
            kwargs["verbose"] = False  # RunReport prints the table
        return kwargs

    def after_fit(self) -> None:
        exit_if_cut_short(self.trainer)

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        config = self.config_init[self.subcommand].trainer
        if self.subcommand == "fit" and config.limit_val_batches is None:
            config.limit_val_batches = 0  # every step logs its energy; the larger sample belongs to ``validate``
        folder = config.default_root_dir
        if self.subcommand != "fit":
            # An evaluation leaves the records of the run alone: Lightning's CSV logger would begin them anew.
            self.save_config_callback = None
            config.logger = config.logger or False
        elif config.logger is None or config.logger is True:
            config.logger = [RunCSVLogger(folder), RunTensorBoardLogger(folder)]
        if self.environment is not None:
            plugins = config.plugins or []
            config.plugins = [*(plugins if isinstance(plugins, list) else [plugins]), self.environment]
        config.callbacks = [*(config.callbacks or []), *self._watchers(config)]
        return super().instantiate_trainer(**kwargs)

    def _watchers(self, config: Any) -> list[Any]:
        best = self.model.system.reference_energies().best() if self.subcommand == "fit" else None
        reference = best[1] if best else None
        watchers: list[Any] = [PredictionWriter()] if self.subcommand == "predict" else [MemoryWatch(), Preemption()]
        if config.enable_progress_bar is not False and sys.stdout.isatty():
            watchers.append(EnergyProgressBar(reference))
        else:
            config.enable_progress_bar = False
            watchers.append(EnergyLines(reference))
        return watchers


def _quieten_libraries() -> None:
    """Silence what Lightning says at every start and no user of this command line can act on."""
    warnings.filterwarnings("ignore", message=".*treespec, LeafSpec.*")
    warnings.filterwarnings("ignore", message=".*The `srun` command is available on your system but is not used.*")
    warnings.filterwarnings("ignore", message=".*`torch.distributed.* is deprecated.*")  # DeepSpeed's own calls
    warnings.filterwarnings("ignore", message="When saving the DeepSpeed Stage 3 checkpoint.*")
    for name in ("lightning.pytorch.utilities.rank_zero", "lightning.fabric.utilities.seed"):
        logging.getLogger(name).setLevel(logging.WARNING)


def main(args: Sequence[str]) -> None:
    """Run ``fit``, ``validate``, ``test`` or ``predict``.

    Raises:
        UserError: also for what jsonargparse and Lightning find wrong in the configuration.
    """
    _quieten_libraries()
    try:
        NNQSCLI(args)
    except (MisconfigurationException, ArgumentError) as error:
        raise UserError(str(error)) from error
