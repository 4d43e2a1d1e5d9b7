"""The configurations printed in docs/scaling.md work as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from math import comb
from pathlib import Path
from typing import Any

import pytest
import yaml

from nnqs_lightning.cli import main

ROOT = Path(__file__).parents[2]
ON_ONE_CPU = [
    "--trainer.accelerator=cpu",
    "--trainer.devices=1",
    "--trainer.num_nodes=1",
    "--trainer.max_steps=2",
    "--data.sampler.init_args.target_unique=2",
    "--report.plot=false",
]
FIT_ALL = "import sys; from nnqs_lightning.cli import main; [main(line.split()) for line in sys.argv[1:]]"


def printed_configurations(folder: Path) -> dict[str, Path]:
    """``node.yaml`` and ``cluster.yaml`` of the page, as files."""
    page = (ROOT / "docs" / "scaling.md").read_text()
    files = {}
    for name, block in re.findall(r"`(\w+\.yaml)`[^\n]*:\n\n```yaml\n(.*?)```", page, re.DOTALL):
        files[name] = folder / name
        files[name].write_text(block)
    return files


@pytest.mark.parametrize(
    ("name", "devices", "nodes", "stage", "target"),
    [("node.yaml", 4, 1, 1, 400_000), ("cluster.yaml", 8, 8, 2, 3_200_000)],
)
def test_printed_configurations_are_understood(
    name: str, devices: int, nodes: int, stage: int, target: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("deepspeed")
    file = printed_configurations(tmp_path)[name]
    with pytest.raises(SystemExit) as stopped:
        main(["fit", f"--config={ROOT}/configs/li2o.yaml", f"--config={file}", "--print_config"])
    assert stopped.value.code == 0
    understood: dict[str, Any] = yaml.safe_load(capsys.readouterr().out)
    assert understood["trainer"]["devices"] == devices
    assert understood["trainer"]["num_nodes"] == nodes
    assert understood["trainer"]["strategy"]["init_args"]["stage"] == stage
    assert understood["data"]["sampler"]["init_args"]["target_unique"] == target
    assert target < comb(15, 7) ** 2 / 8, "more than Li2O has in one irrep of C2v with an even spin"


@pytest.mark.slow
@pytest.mark.deepspeed
def test_printed_configurations_train_on_one_cpu(tmp_path: Path) -> None:
    pytest.importorskip("deepspeed")
    files = printed_configurations(tmp_path).values()
    start, end = f"fit --config={ROOT}/configs/h2.yaml", " ".join(ON_ONE_CPU)
    lines = [f"{start} --config={file} --trainer.default_root_dir={file.with_suffix('')} {end}" for file in files]
    assert len(lines) == 2
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    fits = subprocess.run(
        [sys.executable, "-c", FIT_ALL, *lines],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert fits.returncode == 0, fits.stderr[-3000:]
    for name in ("node", "cluster"):
        assert (tmp_path / name / "summary.json").exists()
