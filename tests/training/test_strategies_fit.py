"""One configuration line trains a molecule on two ranks; what it leaves needs neither two ranks nor DeepSpeed."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ranks import run_ranks

from nnqs_lightning.training import consolidate

pytest.importorskip("deepspeed")
pytestmark = [pytest.mark.slow, pytest.mark.deepspeed]

ROOT = Path(__file__).parents[2]
CONFIGS = ["configs/lih.yaml", "configs/optimizer/spring.yaml", "tests/training/lih_small.yaml"]
LIH = [f"--config={ROOT / config}" for config in CONFIGS]
DEEPSPEED = f"--config={ROOT}/configs/trainer/deepspeed-cpu.yaml"
WITHOUT_DEEPSPEED = "import sys; sys.modules['deepspeed'] = None; from nnqs_lightning.__main__ import main; main()"


def run(*args: str, deepspeed: bool = True) -> subprocess.CompletedProcess[str]:
    start = ["-m", "nnqs_lightning"] if deepspeed else ["-c", WITHOUT_DEEPSPEED]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        [sys.executable, *start, *args], env=environment, capture_output=True, text=True, timeout=500, check=False
    )


def summary(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "summary.json").read_text())


def energies(folder: Path) -> list[float]:
    """Of the steps after the checkpoint at step 20."""
    with (folder / "metrics.csv").open() as file:
        return [float(row["energy/mean"]) for row in csv.DictReader(file) if int(row["step"]) >= 20]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the runs ``1``, ``2`` and ``3``, by stage, each on two ranks."""
    folder = tmp_path_factory.mktemp("zero")
    run_ranks("cli_stages.py", 2, folder, *LIH, DEEPSPEED, "--trainer.devices=2")
    return folder


@pytest.mark.parametrize("stage", ["1", "2", "3"])
def test_two_ranks_reach_chemical_accuracy(runs: Path, stage: str) -> None:
    assert summary(runs / stage)["ranks"] == 2
    assert abs(summary(runs / stage)["error_mha"]) < 1.6


def test_one_rank_continues_as_two_ranks_did(runs: Path, tmp_path: Path) -> None:
    checkpoint = runs / "3" / "checkpoints" / "step-00000020"
    where = f"--trainer.default_root_dir={tmp_path}"
    resumed = run("fit", *LIH, DEEPSPEED, "--trainer.devices=1", f"--ckpt_path={checkpoint}", where)
    assert resumed.returncode == 0, resumed.stderr[-3000:]
    assert len(energies(tmp_path)) == 20
    assert energies(tmp_path) == pytest.approx(energies(runs / "3"), abs=1e-6)


def test_a_consolidated_run_is_validated_without_deepspeed(runs: Path, tmp_path: Path) -> None:
    output = tmp_path / "whole.ckpt"
    consolidate.main([str(runs / "3" / "checkpoints" / "step-00000040"), "--output", str(output)])
    where = f"--trainer.default_root_dir={tmp_path}"
    validated = run("validate", *LIH, f"--ckpt_path={output}", where, deepspeed=False)
    assert validated.returncode == 0, validated.stderr[-3000:]
    assert f"{summary(runs / '3')['energy']:.6f}"[:-1] in validated.stdout


def test_without_deepspeed_a_fit_says_how_to_install_it(tmp_path: Path) -> None:
    refused = run("fit", *LIH, DEEPSPEED, f"--trainer.default_root_dir={tmp_path}", deepspeed=False)
    assert refused.returncode == 2
    (line,) = [line for line in refused.stderr.splitlines() if line.startswith("error:")]
    assert "pip install 'nnqs_lightning[deepspeed]'" in line
