import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from score_ranks import CASES, SIZES, N

SCRIPT = Path(__file__).with_name("score_ranks.py")


@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    """(size, case) → the results of every rank."""
    folder = tmp_path_factory.mktemp("ranks")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen([sys.executable, str(SCRIPT), str(folder), str(rank)], env=environment)
        for rank in range(max(SIZES))
    ]
    assert [process.wait(timeout=300) for process in processes] == [0] * max(SIZES)
    found = {}
    for size in SIZES:
        files = [torch.load(folder / f"{rank}_of_{size}.pt", weights_only=False) for rank in range(size)]
        found.update({(size, case): [file[case] for file in files] for case in files[0]})
    return found


def merged(parts, key):
    whole = torch.zeros(N, dtype=torch.complex128)
    for part in parts:
        whole[part["own"]] = part[key]
    return whole


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("size", SIZES[1:])
def test_any_number_of_ranks_gives_the_same_step(steps, size, case):
    """The last of four ranks has no determinants."""
    alone, parts = steps[1, case], steps[size, case]
    for found, expected in [
        *[(merged(parts, key), merged(alone, key)) for key in ("minsr", "spring")],
        (parts[0]["gradient"], alone[0]["gradient"]),
    ]:
        torch.testing.assert_close(found / expected.abs().max(), expected / expected.abs().max(), rtol=0, atol=1e-10)
    for part in parts:
        assert part["stats"] == pytest.approx(alone[0]["stats"], rel=1e-9)
        assert part["energy"].mean == pytest.approx(alone[0]["energy"].mean, rel=1e-13)
        assert part["energy"].variance == pytest.approx(alone[0]["energy"].variance, rel=1e-12)


@pytest.mark.slow
def test_two_ranks_give_the_same_supervised_start_as_one(steps):
    (alone,) = steps[1, "fit"]
    for parameters in steps[2, "fit"]:
        torch.testing.assert_close(parameters, alone, rtol=0, atol=1e-8)
