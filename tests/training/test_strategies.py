"""What does not fit DeepSpeed is refused in one line that names the key to change."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from jsonargparse import Namespace
from lightning.pytorch.accelerators import CPUAccelerator, CUDAAccelerator, MPSAccelerator
from lightning.pytorch.plugins.precision import DeepSpeedPrecision

from nnqs_lightning.errors import UserError
from nnqs_lightning.training.strategies import DeepSpeed, refuse_misfits, settings


def test_without_deepspeed_it_says_how_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'nnqs_lightning\[deepspeed\]'"):
        DeepSpeed(stage=1)


def configured(**arguments: Any) -> Namespace:
    """``trainer.strategy`` as the command line reads it."""
    return Namespace(class_path="nnqs_lightning.training.strategies.DeepSpeed", init_args=Namespace(**arguments))


def test_double_precision_is_refused() -> None:
    pytest.importorskip("deepspeed")
    for precision in ("64-true", 64):
        with pytest.raises(UserError, match=r"trainer\.precision is 64.*ddp or auto"):
            refuse_misfits(configured(), precision)
    refuse_misfits(configured(), "32-true")
    refuse_misfits("ddp", "64-true")


def test_the_command_line_refuses_before_it_builds() -> None:
    pytest.importorskip("deepspeed")
    with pytest.raises(UserError, match="stage is 7, expected 0"):
        refuse_misfits(configured(stage=7, config=None), "32-true")
    with pytest.raises(UserError, match="train_batch_size"):
        refuse_misfits(configured(stage=None, config={"train_batch_size": 4}), "32-true")


def test_lightnings_own_deepspeed_is_refused() -> None:
    with pytest.raises(UserError, match=r"nnqs_lightning\.training\.strategies\.DeepSpeed"):
        refuse_misfits("deepspeed_stage_2", None)


@pytest.mark.deepspeed
class TestConfig:
    """Conflicts between a DeepSpeed config and the run's own settings."""

    @pytest.fixture(autouse=True)
    def _needs_deepspeed(self) -> None:
        pytest.importorskip("deepspeed")

    @pytest.mark.parametrize("stage", [4, -1, True])
    def test_unknown_stage(self, stage: int) -> None:
        with pytest.raises(UserError, match=rf"stage is {stage}, expected 0"):
            DeepSpeed(stage=stage)

    @pytest.mark.parametrize("key", settings.BATCH_KEYS)
    def test_batch_size_keys_are_named(self, key: str) -> None:
        with pytest.raises(UserError, match=rf"{key} to 8.*data\.sampler"):
            DeepSpeed(config={key: 8})

    def test_stage_and_config_disagree(self) -> None:
        with pytest.raises(UserError, match=r"stage is 3, but zero_optimization\.stage .* is 2"):
            DeepSpeed(stage=3, config={"zero_optimization": {"stage": 2}})

    def test_config_comes_from_a_file(self, tmp_path: Path) -> None:
        path = tmp_path / "ds.json"
        path.write_text(json.dumps({"zero_optimization": {"stage": 2}, "wall_clock_breakdown": True}))
        strategy = DeepSpeed(config=str(path), zero_options={"reduce_scatter": False})
        assert strategy.stage == 2
        assert strategy.config["wall_clock_breakdown"]
        assert not strategy.config["zero_optimization"]["reduce_scatter"]
        with pytest.raises(UserError, match=r"config is .*absent\.json"):
            DeepSpeed(config=str(tmp_path / "absent.json"))

    def test_stage_defaults_to_one_and_linear_layers_stay_torchs(self) -> None:
        strategy = DeepSpeed()
        assert strategy.stage == 1
        assert strategy.config["zero_optimization"]["memory_efficient_linear"] is False

    @pytest.mark.parametrize(
        ("config", "flags", "message"),
        [
            (
                {"gradient_clipping": 0.5},
                {"clip_val": 1.0},
                r"gradient_clip_val is 1\.0, but gradient_clipping .* 0\.5",
            ),
            ({}, {"clip_algorithm": "value"}, r"gradient_clip_algorithm is value"),
            ({"bf16": {"enabled": True}}, {}, r"precision is 32-true, but bf16 is enabled"),
            ({"fp16": {"enabled": True}}, {"precision": "bf16-mixed"}, r"precision is bf16-mixed, but fp16 is enabled"),
            ({"bf16": {"enabled": False}}, {"precision": "bf16-mixed"}, r"bf16 is switched off"),
        ],
    )
    def test_trainer_flags_and_config_disagree(self, config: Any, flags: Any, message: str) -> None:
        agreed = {"precision": "32-true", "clip_val": None, "clip_algorithm": None}
        settings.check_trainer({}, **agreed)
        with pytest.raises(UserError, match=message):
            settings.check_trainer(config, **{**agreed, **flags})


def on(strategy: DeepSpeed, accelerator: Any, precision: str = "32-true") -> DeepSpeed:
    """The strategy as a Trainer with these flags would set it up."""
    strategy._accelerator = accelerator
    strategy.precision_plugin = DeepSpeedPrecision(precision)  # type: ignore[arg-type]
    return strategy


@pytest.mark.deepspeed
class TestDevice:
    """What a device cannot do."""

    @pytest.fixture(autouse=True)
    def _needs_deepspeed_on_cpu(self) -> None:
        pytest.importorskip("deepspeed")
        DeepSpeed()
        from deepspeed.accelerator import get_accelerator

        if get_accelerator().device_name() != "cpu":
            pytest.skip("DeepSpeed works on a GPU here")

    def test_other_accelerators(self) -> None:
        with pytest.raises(UserError, match=r"trainer\.accelerator is mps, expected cuda or cpu"):
            on(DeepSpeed(), MPSAccelerator()).setup_environment()

    def test_mixed_devices(self) -> None:
        with pytest.raises(UserError, match=r"accelerator is cuda, but DeepSpeed works on cpu.*DS_ACCELERATOR=cuda"):
            on(DeepSpeed(), CUDAAccelerator()).setup_environment()

    def test_half_precision_on_a_cpu(self) -> None:
        with pytest.raises(UserError, match=r"precision is 16-mixed, which needs a GPU"):
            on(DeepSpeed(), CPUAccelerator(), "16-mixed").setup_environment()

    @pytest.mark.parametrize("flags", [{"offload_optimizer": True}, {"offload_parameters": True, "stage": 3}])
    def test_offload_from_a_cpu(self, flags: Any) -> None:
        with pytest.raises(UserError, match=r"offload_\w+ to cpu moves state away from a GPU"):
            on(DeepSpeed(**flags), CPUAccelerator()).setup_environment()


@pytest.mark.deepspeed
def test_offload_needs_its_op(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("deepspeed")
    import deepspeed.accelerator

    on_gpu = SimpleNamespace(device_name=lambda: "cuda")
    monkeypatch.setattr(deepspeed.accelerator, "get_accelerator", lambda: on_gpu)
    monkeypatch.setattr(settings.shutil, "which", lambda name: None)
    offload = {"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}
    settings.check_device(offload, "cuda", "32-true")
    with pytest.raises(
        UserError, match=r"offload_optimizer with AdamW needs DeepSpeed's op cpu_adam.*DS_BUILD_CPU_ADAM"
    ):
        settings.check_device({**offload, "optimizer": {"type": "AdamW"}}, "cuda", "32-true")
    with pytest.raises(UserError, match=r"offload_param to nvme needs DeepSpeed's op async_io.*DS_BUILD_AIO"):
        settings.check_device({"zero_optimization": {"offload_param": {"device": "nvme"}}}, "cuda", "32-true")


def test_deepspeed_is_imported_only_when_used() -> None:
    code = "import sys, nnqs_lightning.training.strategies; sys.exit('deepspeed' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
