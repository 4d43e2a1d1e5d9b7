"""Lightning's DeepSpeed strategy, fitted to variational Monte Carlo and to CPUs."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import Any

import torch
from lightning.fabric.utilities.seed import reset_seed
from lightning.pytorch import Trainer
from lightning.pytorch.accelerators import CPUAccelerator, CUDAAccelerator
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.rank_zero import rank_zero_warn

from nnqs_lightning.errors import UserError
from nnqs_lightning.training.strategies import settings
from nnqs_lightning.training.strategies.restore import restore_optimizer, restore_weights
from nnqs_lightning.training.strategies.shards import is_sharded, layout, read_whole
from nnqs_lightning.training.strategies.whole import unsharded

if not torch.cuda.is_available():
    # DeepSpeed looks once, when it is first imported, which the parser of the command line may do.
    os.environ.setdefault("DS_ACCELERATOR", "cpu")


class DeepSpeed(DeepSpeedStrategy):
    """ZeRO at every stage, on GPUs (NCCL) and, for tests and small clusters, on CPUs (gloo).

    Differs from Lightning's strategy in three ways. CPUs are accepted; on CUDA the parent does everything. At stage 3,
    where every forward pass is a collective gather, parameters stay whole from the draw of a sample to the training
    step, because ranks walk trees of different sizes. And what does not fit is refused in one line.

    Source: Rajbhandari et al., ZeRO: memory optimizations toward training trillion parameter models, SC 2020.

    Raises:
        UserError: DeepSpeed is not installed, an unknown stage, or a config that contradicts the run's own.

    Args:
        stage: 0 shards nothing, 1 the optimiser's state, 2 gradients too, 3 parameters too; null takes the stage of
            ``config``, or 1.
        config: Your own DeepSpeed config, as a JSON file or a mapping; its defaults then are DeepSpeed's, and all
            arguments but ``stage`` and ``zero_options`` are without effect.
        zero_options: Further keys of DeepSpeed's ``zero_optimization`` section.
    """

    def __init__(
        self,
        stage: int | None = None,
        config: str | dict[str, Any] | None = None,
        zero_options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        config = config or os.environ.get(self.DEEPSPEED_ENV_VAR)
        settings.check_arguments(stage, config)
        super().__init__(stage=1 if stage is None else stage, config=config, **kwargs)
        assert isinstance(self.config, dict)
        zero = self.config.setdefault("zero_optimization", {})
        # DeepSpeed's own linear layer for stage 3 rounds differently, and replaces torch's for the whole process.
        zero.setdefault("memory_efficient_linear", False)
        # Offloaded optimisers of torch are right, and need no op to be built; DeepSpeed's CPUAdam is only faster.
        self.config.setdefault("zero_force_ds_cpu_optimizer", False)
        self.config.setdefault("zero_allow_untested_optimizer", True)
        zero.update(zero_options or {})
        self._whole: ExitStack | None = None

    @property
    def stage(self) -> int:
        """ZeRO stage."""
        assert isinstance(self.config, dict)
        return int(self.config["zero_optimization"].get("stage", 0))

    @property
    def _on_cpu(self) -> bool:
        return isinstance(self.accelerator, CPUAccelerator)

    @property
    def root_device(self) -> torch.device:
        # The engine compares the index with zero, so a CPU needs one.
        return torch.device("cpu", 0) if self._on_cpu else super().root_device

    def setup_environment(self) -> None:
        if not isinstance(self.accelerator, (CPUAccelerator, CUDAAccelerator)):
            name = type(self.accelerator).__name__.removesuffix("Accelerator").lower()
            raise UserError(f"trainer.accelerator is {name}, expected cuda or cpu for DeepSpeed")
        assert isinstance(self.config, dict)
        settings.check_device(self.config, "cpu" if self._on_cpu else "cuda", self.precision_plugin.precision)
        if self._on_cpu:
            DDPStrategy.setup_environment(self)
        else:
            super().setup_environment()

    def setup_distributed(self) -> None:
        if not self._on_cpu:
            super().setup_distributed()
            return
        from deepspeed import ops

        # Else start-up compiles a shared-memory transport for a minute; gloo does the same job.
        ops.__compatible_ops__["deepspeed_shm_comm"] = False
        reset_seed()
        self.set_world_ranks()
        self._init_deepspeed_distributed()

    def setup(self, trainer: Trainer) -> None:
        assert isinstance(self.config, dict)
        if not self._config_initialized:
            settings.check_trainer(
                self.config,
                self.precision_plugin.precision,
                trainer.gradient_clip_val,
                trainer.gradient_clip_algorithm,
            )
            if "optimizer" in self.config:
                rank_zero_warn(f"the optimizer in {settings.WHERE}.config takes the place of model.optimizer")
        super().setup(trainer)

    def gather_parameters(self) -> None:
        """Make parameters whole on every rank until the next training step or save; collective."""
        if self._whole is None and self.zero_stage_3 and self.model is not self.lightning_module:
            self._whole = ExitStack()
            self._whole.enter_context(unsharded(self.model))

    def release_parameters(self) -> None:
        """Undo :meth:`gather_parameters`; collective."""
        if self._whole is not None:
            whole, self._whole = self._whole, None
            whole.close()

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        self.release_parameters()
        return super().training_step(*args, **kwargs)

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        return self._evaluation_step("validation_step", *args, **kwargs)

    def test_step(self, *args: Any, **kwargs: Any) -> Any:
        return self._evaluation_step("test_step", *args, **kwargs)

    def predict_step(self, *args: Any, **kwargs: Any) -> Any:
        return self._evaluation_step("predict_step", *args, **kwargs)

    def _evaluation_step(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """A step without gradient, past the engine: it may call the network any number of times."""
        self.gather_parameters()
        return getattr(self.lightning_module, name)(*args, **kwargs)

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        self.release_parameters()
        super().save_checkpoint(checkpoint, filepath, storage_options)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """State of any checkpoint: this layout's own shards, another layout's or number of ranks', or a whole file."""
        self.release_parameters()
        sharded = is_sharded(checkpoint_path)
        if sharded and layout(checkpoint_path) == (self.zero_stage_3, self.world_size if self.stage else 0):
            return super().load_checkpoint(checkpoint_path, weights_only)
        if sharded:
            checkpoint = read_whole(checkpoint_path)
        else:
            checkpoint = self.checkpoint_io.load_checkpoint(checkpoint_path, weights_only=weights_only)
        assert self.lightning_module is not None
        weights = checkpoint["state_dict"]
        restore_weights(self.deepspeed_engine, weights, self.lightning_module.strict_loading)
        if self.lightning_module.trainer.state.fn == TrainerFn.FITTING and checkpoint.get("optimizer_states"):
            restore_optimizer(self.deepspeed_engine, weights, checkpoint["optimizer_states"][0])
        return checkpoint

    def teardown(self) -> None:
        self._whole = None
        super().teardown()
