"""The LightningModule: wiring only. Every formula lives in the room that owns it."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from jsonargparse import lazy_instance
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.checkpoint import checkpoint

from nnqs_lightning import distributed
from nnqs_lightning.ansatz import TransformerAnsatz
from nnqs_lightning.ansatz.base import AnsatzFactory
from nnqs_lightning.chem import System
from nnqs_lightning.errors import UserError
from nnqs_lightning.fock import SampleBatch
from nnqs_lightning.hamiltonian import hamiltonian_on
from nnqs_lightning.optim import MinSR, Pretraining
from nnqs_lightning.optim.base import Direction
from nnqs_lightning.training import start
from nnqs_lightning.training.metrics import EnergyMetrics
from nnqs_lightning.training.profiling import clock
from nnqs_lightning.training.strategies import full_gradients
from nnqs_lightning.vmc import ExactLocalEnergy, LocalEnergies, LocalEnergy, SubspaceLocalEnergy
from nnqs_lightning.vmc.estimators import estimate_energy

OptimizerFactory = Callable[[Iterable[nn.Parameter]], Optimizer]
SchedulerFactory = Callable[[Optimizer], LRScheduler]


class NNQSModule(LightningModule):
    """Variational Monte Carlo of one wave function for one system.

    A training step is split so that everything without gradient (local energies, the direction of descent) happens in
    ``on_train_batch_start``, outside the wrapped forward pass, and the step itself is one pass of Σ Re(c* log ψ).

    Args:
        system: Where the integrals come from: a molecule, an FCIDUMP file, a lattice.
        ansatz: The wave function; its first argument, the integrals, is filled in.
        local_energy: Estimate of the local energies that training minimises.
        validation_energy: Estimate that validate and test report; exact local energies give the network's own energy.
        direction: Direction of descent: the energy gradient or a natural gradient.
        optimizer: Optimiser that descends along the direction.
        lr_scheduler: Schedule of the learning rate, advanced once a step.
        pretraining: Supervised start of a new run, a fit to a cheap state; null for none.
        init_from: Checkpoint, of this system or another, whose fitting parameters training starts from.
        max_rows: Determinants in one differentiated forward pass; a larger step is recomputed piece by piece
            in the backward pass, which gives the same gradient in bounded memory.
    """

    def __init__(
        self,
        system: System,
        ansatz: AnsatzFactory = TransformerAnsatz,
        local_energy: LocalEnergy = lazy_instance(SubspaceLocalEnergy),  # noqa: B008
        validation_energy: LocalEnergy = lazy_instance(ExactLocalEnergy),  # noqa: B008
        direction: Direction = lazy_instance(MinSR, energy_shift=0.5, min_damping=1e-6, max_norm=0.5),  # noqa: B008
        optimizer: OptimizerFactory = lambda parameters: SGD(parameters, lr=1.0),
        lr_scheduler: SchedulerFactory | None = None,
        pretraining: Pretraining | None = lazy_instance(Pretraining),  # noqa: B008
        init_from: str | None = None,
        max_rows: int = 8192,
    ) -> None:
        super().__init__()
        if max_rows < 1:
            raise UserError(f"model.max_rows is {max_rows}, expected at least 1")
        self.system = system
        integrals = system.integrals()
        self.ansatz = ansatz(integrals)
        self.hamiltonian = hamiltonian_on(integrals, self.ansatz.sector)
        # Copies: what they learn during a run must not reach another module built from the same objects.
        self.local_energy, self.validation_energy, self.direction = copy.deepcopy(
            (local_energy, validation_energy, direction)
        )
        self.optimizer_factory = optimizer
        self.scheduler_factory = lr_scheduler
        if init_from is not None:
            start.init_from(self.ansatz, init_from)
        self.pretraining = pretraining
        self.max_rows = max_rows
        self.metrics = nn.ModuleDict({stage: EnergyMetrics() for stage in ("validate", "test", "exact")})
        self.survives_divergence = False
        """Set by a callback that takes the run back to a good state; without one a NaN ends it."""
        self._coefficients: Tensor | None = None
        self._n_pieces = 1

    def setup(self, stage: str) -> None:
        # Before the strategy shards anything; a resumed run takes its parameters from the checkpoint.
        if stage == "fit" and self.pretraining is not None and not self.trainer.ckpt_path:
            self.ansatz.to(self.trainer.strategy.root_device)
            start.pretrain(self.pretraining, self.ansatz, self.hamiltonian, Path(self.trainer.default_root_dir))

    def configure_optimizers(self) -> Any:
        optimizer = self.optimizer_factory(self.ansatz.parameters())
        if self.scheduler_factory is None:
            return optimizer
        scheduler = self.scheduler_factory(optimizer)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def on_train_batch_start(self, batch: SampleBatch, batch_idx: int) -> None:
        """Everything of a step that needs no gradient."""
        with clock.phase("local_energy"), self.trainer.precision_plugin.forward_context():
            energies = self.local_energy.evaluate(self.hamiltonian, self.ansatz, batch)
        if not self._is_finite(energies, batch.step):
            # A step along nothing; the callback that survives divergence takes the run back when it ends.
            self._coefficients, self._n_pieces = torch.zeros_like(energies.values), 1
            self.log("energy/mean", math.nan, on_step=True, on_epoch=False, batch_size=1)
            return
        with clock.phase("direction"):
            learning_rate = self.trainer.optimizers[0].param_groups[0]["lr"]
            self._coefficients, direction_stats = self.direction.coefficients(
                self.ansatz, batch, energies, learning_rate
            )
            self._n_pieces = self._pieces(batch)
        statistics = estimate_energy(energies, batch)
        figures = {
            "energy/mean": statistics.mean,
            "energy/variance": statistics.variance,
            "energy/error_bar": statistics.error,
            **batch.stats,
            **energies.stats,
            **direction_stats,
        }
        # As tensors: Lightning would make float32 of Python's floats, 8 µHa at 75 hartree.
        tensors = {key: torch.tensor(value, dtype=torch.float64) for key, value in figures.items()}
        self.log_dict(tensors, on_step=True, on_epoch=False, batch_size=1)

    def training_step(self, batch: SampleBatch, batch_idx: int) -> Tensor:
        """Surrogate whose gradient, averaged over ranks by the strategy, is the direction of descent."""
        assert self._coefficients is not None
        with clock.phase("backward"):
            loss = torch.stack(
                [
                    Direction.surrogate(coefficients, self._log_psi(determinants))
                    for coefficients, determinants in zip(
                        self._coefficients.tensor_split(self._n_pieces),
                        batch.determinants.tensor_split(self._n_pieces),
                        strict=True,
                    )
                ]
            ).sum()
        # Strategies average gradients over ranks; the coefficients are normalised over all ranks together.
        return loss * distributed.world_size()

    def _pieces(self, batch: SampleBatch) -> int:
        """Number of pieces of at most ``max_rows``, the same on every rank: ZeRO-3 gathers parameters once for each."""
        mine = torch.tensor(-(-len(batch) // self.max_rows), device=batch.determinants.device)
        return max(1, int(distributed.all_reduce_max(mine)))

    def _log_psi(self, determinants: Tensor) -> Tensor:
        if self._n_pieces == 1:
            return self.ansatz(determinants)
        return checkpoint(self.ansatz, determinants, use_reentrant=False)

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        if is_overridden("observe_gradient", self.direction, Direction):
            self.direction.observe_gradient(full_gradients(self.trainer.strategy, self.ansatz.parameters()))

    def validation_step(self, batch: SampleBatch, batch_idx: int) -> dict[str, Any]:
        """The network's own energy: ψ on every connected determinant, weights of the sampler."""
        energies = self.validation_energy.evaluate(self.hamiltonian, self.ansatz, batch)
        self._metric("validate").update(energies, batch)
        return {"estimate": estimate_energy(energies, batch), "variational": energies.variational}

    def on_validation_epoch_end(self) -> None:
        self._log_metrics("validate")

    def test_step(self, batch: SampleBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Sampled energy (first loader) and, where the sector is small enough, the exact sum (second loader)."""
        energies = self.validation_energy.evaluate(self.hamiltonian, self.ansatz, batch)
        self._metric("exact" if dataloader_idx else "test").update(energies, batch)

    def on_test_epoch_end(self) -> None:
        self._log_metrics("test")
        if self._metric("exact").update_called:
            self._log_metrics("exact")

    def predict_step(self, batch: SampleBatch, batch_idx: int) -> SampleBatch:
        return batch

    def _log_metrics(self, stage: str) -> None:
        metric = self._metric(stage)
        self.log_dict({f"{stage}/{key}": value for key, value in metric.compute().items()})
        metric.reset()

    def _metric(self, stage: str) -> EnergyMetrics:
        metric = self.metrics[stage]
        assert isinstance(metric, EnergyMetrics)
        return metric

    def _is_finite(self, energies: LocalEnergies, step: int) -> bool:
        bad = distributed.all_reduce_sum((~torch.isfinite(torch.view_as_real(energies.values))).sum())
        if bad and not self.survives_divergence:
            raise UserError(
                f"step {step}: {int(bad)} local energies are NaN or infinite. Lower model.optimizer's lr or the trust "
                "region of model.direction, or resume from an earlier checkpoint with --ckpt_path"
            )
        return not bad
