"""A checkpoint continues in any layout, on any number of ranks, as if nothing had happened."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from ranks import run_ranks
from resume_layouts import LAYOUTS

from nnqs_lightning.errors import UserError
from nnqs_lightning.training.consolidate import consolidate
from nnqs_lightning.training.strategies import settings

pytest.importorskip("deepspeed")
pytestmark = [pytest.mark.slow, pytest.mark.deepspeed]

SHARDED = LAYOUTS[1:]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of every layout after 10 of 20 steps on two ranks, and what they consolidate to."""
    folder = tmp_path_factory.mktemp("saved-by-two")
    run_ranks("resume_layouts.py", 2, folder, *(f"save:{layout}" for layout in LAYOUTS))
    for layout in SHARDED:
        consolidate(folder / f"{layout}.ckpt")
    return folder


@pytest.fixture(scope="module")
def saved_by_one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of :func:`on_one_rank`."""
    return tmp_path_factory.mktemp("one")


@pytest.fixture(scope="module")
def on_one_rank(saved: Path, saved_by_one: Path) -> dict[str, list[float]]:
    """Losses of a whole run, of runs saved half-way, and of some that take up two ranks' checkpoints."""
    pairs = ["0:0", "1:1", "2:2", "3:3", "0:2", "1:3", "3:1", "ddp:1", "ddp:3", "1.whole:ddp", "3.whole:ddp"]
    resumed = [f"{saved}/{pair.replace(':', '.ckpt:')}" for pair in pairs]
    return run_ranks("resume_layouts.py", 1, saved_by_one, "ddp", *(f"save:{stage}" for stage in "123"), *resumed)[0]


def test_two_ranks_continue_on_one(on_one_rank: dict[str, list[float]]) -> None:
    continued = {run: losses for run, losses in on_one_rank.items() if ".ckpt:" in run}
    assert len(continued) == 11
    for run, losses in continued.items():
        assert losses == pytest.approx(on_one_rank["ddp"][10:], abs=1e-6), run


@pytest.fixture(scope="module")
def on_two_ranks(
    saved: Path, saved_by_one: Path, on_one_rank: dict[str, list[float]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[float]]:
    """Losses of whole runs, of runs that take up their own layout's checkpoint, and of some that take up one rank's."""
    same = [f"{saved}/{stage}.ckpt:{stage}" for stage in "123"]
    other = [f"{saved_by_one}/{pair.replace(':', '.ckpt:')}" for pair in ("1:1", "2:2", "3:3", "2:3", "3:1")]
    return run_ranks("resume_layouts.py", 2, tmp_path_factory.mktemp("two"), *"123", *same, *other)[0]


def test_one_rank_continues_on_two(on_one_rank: dict[str, list[float]], on_two_ranks: dict[str, list[float]]) -> None:
    continued = {run: losses for run, losses in on_two_ranks.items() if "/one" in run}
    assert len(continued) == 5
    for run, losses in continued.items():
        assert losses == pytest.approx(on_one_rank["ddp"][10:], abs=1e-6), run


@pytest.mark.parametrize("stage", list("123"))
def test_the_same_ranks_continue_bit_for_bit(saved: Path, on_two_ranks: dict[str, list[float]], stage: str) -> None:
    assert on_two_ranks[f"{saved}/{stage}.ckpt:{stage}"] == on_two_ranks[stage][10:]


@pytest.mark.parametrize("layout", SHARDED)
def test_consolidated_weights_and_moments_are_those_of_ddp(saved: Path, layout: str) -> None:
    whole = torch.load(saved / f"{layout}.whole.ckpt", weights_only=False)
    reference = torch.load(saved / "ddp.ckpt", weights_only=False)
    assert list(whole["state_dict"]) == list(reference["state_dict"])
    torch.testing.assert_close(dict(whole["state_dict"]), dict(reference["state_dict"]), rtol=1e-6, atol=1e-7)
    ours, theirs = whole["optimizer_states"][0], reference["optimizer_states"][0]
    torch.testing.assert_close(ours["state"], theirs["state"], rtol=1e-5, atol=1e-7)
    assert [group["params"] for group in ours["param_groups"]] == [group["params"] for group in theirs["param_groups"]]
    assert whole["global_step"] == 10


def test_a_whole_file_is_not_consolidated_again(saved: Path) -> None:
    with pytest.raises(UserError, match="is a single file already"):
        consolidate(saved / "ddp.ckpt")
    with pytest.raises(UserError, match="is not a checkpoint"):
        consolidate(saved)


def test_missing_shards_are_noticed(saved: Path, tmp_path: Path) -> None:
    torn = tmp_path / "torn.ckpt"
    shutil.copytree(saved / "1.ckpt", torn)
    next((torn / "checkpoint").glob("*rank_1*optim_states.pt")).unlink()
    with pytest.raises(UserError, match="1 of 2 optimiser shards"):
        consolidate(torn)


def test_without_deepspeed_consolidating_says_how_to_install(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"nnqs_lightning\[deepspeed\]"):
        consolidate(saved / "2.ckpt")
