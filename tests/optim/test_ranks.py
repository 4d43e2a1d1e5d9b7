import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from ranks import N

SCRIPT = Path(__file__).with_name("ranks.py")


def results(folder, size, width, kind):
    command = [sys.executable, str(SCRIPT), str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen([*command, str(rank), str(size), str(width), kind], env=environment) for rank in range(size)
    ]
    assert [process.wait(timeout=120) for process in processes] == [0] * size
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(size)]


@pytest.mark.slow
@pytest.mark.parametrize(("width", "kind"), [(40, "separate"), (40, "shared"), (3, "shared")])
def test_any_number_of_ranks_gives_the_same_step(tmp_path, width, kind):
    """In the space of samples (wide) and of parameters (narrow); the last of four ranks has no determinants."""
    steps = {}
    for size in (1, 2, 4):
        folder = tmp_path / str(size)
        folder.mkdir()
        parts = results(folder, size, width, kind)
        merged = {key: torch.zeros(N, dtype=torch.complex128) for key in ("minsr", "spring")}
        for part in parts:
            for key, values in merged.items():
                values[part["own"]] = part[key]
            assert part["stats"] == pytest.approx(parts[0]["stats"], rel=1e-12)
            assert part["energy"] == parts[0]["energy"]
        steps[size] = {**merged, "gradient": parts[0]["gradient"], "energy": parts[0]["energy"]}
    for size in (2, 4):
        for key in ("minsr", "spring", "gradient"):
            scale = steps[1][key].abs().max()
            torch.testing.assert_close(steps[size][key] / scale, steps[1][key] / scale, rtol=0, atol=1e-10)
        assert steps[size]["energy"].mean == pytest.approx(steps[1]["energy"].mean, rel=1e-13)
        assert steps[size]["energy"].variance == pytest.approx(steps[1]["energy"].variance, rel=1e-12)
