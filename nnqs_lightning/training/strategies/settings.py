"""What a DeepSpeed run may not ask for, each refusal in one line that names the key to change."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nnqs_lightning.errors import UserError

STAGES = (0, 1, 2, 3)
BATCH_KEYS = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
WHERE = "trainer.strategy.init_args"
INSTALL = "pip install 'nnqs_lightning[deepspeed]'"


def require_deepspeed() -> None:
    """Raises UserError where DeepSpeed is not installed."""
    if find_spec("deepspeed") is None:
        raise UserError(
            f"trainer.strategy is DeepSpeed, which is not installed: {INSTALL} (Linux only), "
            "or choose ddp or auto for trainer.strategy"
        )


def check_stage(stage: Any) -> None:
    """Raises UserError for a stage that ZeRO does not have."""
    if stage not in STAGES or isinstance(stage, bool):
        raise UserError(
            f"{WHERE}.stage is {stage!r}, expected 0 (nothing sharded), 1 (optimiser state), "
            "2 (and gradients) or 3 (and parameters)"
        )


def check_arguments(stage: int | None, config: str | dict[str, Any] | None) -> None:
    """Raises UserError where DeepSpeed is missing, the stage unknown, or a user's own config decides what is not its.

    Args:
        stage: the strategy's; None takes that of ``config``.
        config: the user's own DeepSpeed config or the path of its JSON file.
    """
    require_deepspeed()
    if stage is not None:
        check_stage(stage)
    if config is None:
        return
    if isinstance(config, str):
        if not Path(config).is_file():
            raise UserError(f"{WHERE}.config is {config!r}, expected the path of a DeepSpeed JSON file")
        config = json.loads(Path(config).read_text())
    assert isinstance(config, dict)
    for key in BATCH_KEYS:
        if key in config:
            raise UserError(
                f"{WHERE}.config sets {key} to {config[key]}: remove it, a step's size is that of its sample "
                "(data.sampler) and its pieces have at most model.max_rows determinants"
            )
    theirs = config.get("zero_optimization", {}).get("stage", 0)
    check_stage(theirs)
    if stage is not None and stage != theirs:
        raise UserError(
            f"{WHERE}.stage is {stage}, but zero_optimization.stage in {WHERE}.config is {theirs}: remove one of them"
        )


def check_trainer(config: dict[str, Any], precision: str, clip_val: float | None, clip_algorithm: Any) -> None:
    """Raises UserError where the DeepSpeed config and the Trainer's flags contradict each other.

    Args:
        config: the DeepSpeed config.
        precision: ``trainer.precision``.
        clip_val: ``trainer.gradient_clip_val``.
        clip_algorithm: ``trainer.gradient_clip_algorithm``.
    """
    theirs = config.get("gradient_clipping")
    if theirs is not None and clip_val is not None and float(theirs) != float(clip_val):
        raise UserError(
            f"trainer.gradient_clip_val is {clip_val}, but gradient_clipping in {WHERE}.config is {theirs}: "
            "remove one of them"
        )
    if clip_algorithm is not None and str(getattr(clip_algorithm, "value", clip_algorithm)) == "value":
        raise UserError("trainer.gradient_clip_algorithm is value, but DeepSpeed clips by norm only: set it to norm")
    for key, ours in (("fp16", "16-"), ("bf16", "bf16-")):
        enabled = bool(config.get(key, {}).get("enabled", False))
        if enabled and not precision.startswith(ours):
            raise UserError(
                f"trainer.precision is {precision}, but {key} is enabled in {WHERE}.config: "
                f"remove it there or set trainer.precision to {ours}mixed"
            )
        if key in config and not enabled and precision.startswith(ours):
            raise UserError(
                f"trainer.precision is {precision}, but {key} is switched off in {WHERE}.config: remove it there"
            )


def check_device(config: dict[str, Any], device: str, precision: str) -> None:
    """Raises UserError for what the device cannot do.

    Args:
        config: the DeepSpeed config.
        device: ``cpu`` or ``cuda``, the Trainer's.
        precision: ``trainer.precision``.
    """
    from deepspeed.accelerator import get_accelerator

    theirs = get_accelerator().device_name()
    if theirs != device:
        raise UserError(
            f"trainer.accelerator is {device}, but DeepSpeed works on {theirs} here: set DS_ACCELERATOR={device} in "
            "the environment, or trainer.accelerator to match"
        )
    if device == "cpu" and precision.startswith("16-"):
        raise UserError(
            f"trainer.precision is {precision}, which needs a GPU: set it to bf16-mixed or 32-true on a CPU"
        )
    for key in ("offload_optimizer", "offload_param"):
        target = (config.get("zero_optimization", {}).get(key) or {}).get("device", "none")
        if target == "none":
            continue
        if device == "cpu":
            raise UserError(
                f"{key} to {target} moves state away from a GPU, and trainer.accelerator is cpu: remove it from {WHERE}"
            )
        if target == "nvme":
            _require_op("async_io", "AsyncIOBuilder", f"{key} to nvme")
    if _builds_cpu_adam(config):
        _require_op("cpu_adam", "CPUAdamBuilder", f"offload_optimizer with {config['optimizer'].get('type')}")


def _builds_cpu_adam(config: dict[str, Any]) -> bool:
    offloads = bool(
        (config.get("zero_optimization", {}).get("offload_optimizer") or {}).get("device", "none") != "none"
    )
    optimizer = config.get("optimizer", {})
    is_adam = str(optimizer.get("type", "")).lower() in ("adam", "adamw")
    return offloads and is_adam and not optimizer.get("params", {}).get("torch_adam", False)


def _require_op(name: str, builder: str, why: str) -> None:
    """A DeepSpeed op is there if it was built at installation, or can be built now."""
    from deepspeed.git_version_info import installed_ops
    from deepspeed.ops import op_builder

    if installed_ops.get(name):
        return
    compiles = shutil.which("ninja") and (shutil.which("c++") or shutil.which("g++"))
    if not compiles or not getattr(op_builder, builder)().is_compatible(verbose=False):
        raise UserError(
            f"{why} needs DeepSpeed's op {name}, which is neither installed nor can be built here: reinstall with "
            f"DS_BUILD_{name.upper().replace('ASYNC_IO', 'AIO')}=1 (needs a C++ compiler and ninja), or drop the "
            f"offload from {WHERE}"
        )


def refuse_misfits(strategy: Any, precision: Any) -> None:
    """Refuse, before anything is built, what jsonargparse and Lightning would answer with a traceback.

    Args:
        strategy: the config of ``trainer.strategy``: a name, or a class path with arguments.
        precision: the config of ``trainer.precision``.

    Raises:
        UserError: see :func:`check_arguments`; Lightning's own DeepSpeed; float64 networks, which DeepSpeed would cast.
    """
    if isinstance(strategy, str) and strategy.startswith("deepspeed"):
        raise UserError(
            f"trainer.strategy is {strategy!r}, Lightning's own: use a fragment of configs/trainer, or "
            "class_path nnqs_lightning.training.strategies.DeepSpeed, which is right for wave functions"
        )
    if not getattr(strategy, "class_path", "").endswith(".DeepSpeed"):
        return
    arguments = strategy.get("init_args", {})
    check_arguments(arguments.get("stage"), arguments.get("config"))
    if str(precision) in ("64", "64-true", "double"):
        raise UserError(
            f"trainer.precision is {precision}, which DeepSpeed cannot train: set it to 32-true, or "
            "trainer.strategy to ddp or auto"
        )
