"""The README's commands run as they stand, but for fewer steps and a scratch folder."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.S | re.M)


def commands() -> list[str]:
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    return [line for line in lines if line.startswith("python -m nnqs_lightning")]


def shell_lines_not_run_here() -> list[str]:
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    return [line for line in lines if line.strip() and line not in commands()]


def test_set_up_commands_are_the_ones_that_ci_runs():
    """Installing and testing is what .ci/run itself does; it picks these two lines out of the README."""
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "README.md" in script
    assert set(shell_lines_not_run_here()) == {
        "pip install torch==2.13.0 && pip install -e .",
        'pip install torch==2.13.0 && pip install -e ".[test]"',
        "python -m pytest -m slurm",
        'python -m pytest -n 2 -m "not slurm"',
        "python -m venv .venv && . .venv/bin/activate",
    }


@pytest.mark.slow
def test_every_command_runs(tmp_path: Path):
    """In the README's order, so that validate, test, predict and the resume find the first command's checkpoint."""
    for source in blocks("python"):
        name = re.match(r"# (\w+\.py)", source)
        if name:
            (tmp_path / name[1]).write_text(source, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    for index, command in enumerate(commands()):
        arguments = shlex.split(command)[3:]
        fresh = "--ckpt_path" not in arguments and arguments[0] == "fit"
        folder = tmp_path / (f"run{index}" if fresh and index else "run")
        if "--help" not in arguments:
            arguments += ["--trainer.default_root_dir", str(folder)]
        if arguments[0] == "fit" and "--help" not in arguments:
            arguments += ["--trainer.max_steps", "2" if fresh else "4"]
        result = subprocess.run(
            [sys.executable, "-m", "nnqs_lightning", *arguments],
            cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert result.returncode == 0, f"{command}\n{result.stdout[-2000:]}\n{result.stderr[-2000:]}"
