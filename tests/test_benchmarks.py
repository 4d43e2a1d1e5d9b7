"""Every benchmark runs from a shell and writes its figures; how long things take is for a reader, not for a test."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
COMMANDS = [path for path in sorted(BENCHMARKS.glob("*.py")) if '"--quick"' in path.read_text(encoding="utf-8")]


def test_there_are_benchmarks():
    assert len(COMMANDS) >= 7


@pytest.mark.slow
@pytest.mark.parametrize("script", COMMANDS, ids=lambda path: path.stem)
def test_the_quick_run_of_a_benchmark_leaves_its_figures(script, tmp_path):
    figures = tmp_path / "figures.json"
    command = [sys.executable, str(script), "--quick", "--json", str(figures)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert json.loads(figures.read_text(encoding="utf-8"))
