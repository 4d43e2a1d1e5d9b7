"""The plan of a study: merging, keys, seeds, shares."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import pytest
import yaml

from nnqs_lightning.errors import UserError
from nnqs_lightning.study.command import parser
from nnqs_lightning.study.design import Fragment, Shard, Study, merge

MakeStudy = Callable[..., Study]


def test_merging_goes_key_by_key_and_changes_neither_side() -> None:
    below, above = {"a": {"b": 1, "c": [1]}}, {"a": {"b": 2}, "d": 3}
    kept = deepcopy((below, above))
    assert merge(below, above) == {"a": {"b": 2, "c": [1]}, "d": 3}
    assert (below, above) == kept


def test_another_class_brings_its_own_arguments_only() -> None:
    below = {"x": {"class_path": "A", "init_args": {"p": 1}}}
    assert merge(below, {"x": {"class_path": "B"}}) == {"x": {"class_path": "B"}}
    assert merge(below, {"x": {"class_path": "A", "init_args": {"q": 2}}})["x"]["init_args"] == {"p": 1, "q": 2}
    assert merge(below, {"x": {"init_args": {"q": 2}}})["x"] == {"class_path": "A", "init_args": {"p": 1, "q": 2}}


def test_cells_are_the_whole_factorial_one_seed_after_the_other(make_study: MakeStudy) -> None:
    cells = make_study(seeds=3).cells()
    assert len(cells) == len({cell.key for cell in cells}) == 3 * 1 * 3
    assert [cell.seed for cell in cells] == [1, 1, 1, 2, 2, 2, 3, 3, 3]


def test_compared_entries_share_their_seed_and_nothing_else_does(make_study: MakeStudy) -> None:
    cells = make_study(systems={"a": {"model": {}}, "b": {"data": {}}}).cells()
    by_block: dict[tuple[str, int], set[int]] = {}
    for cell in cells:
        by_block.setdefault((cell.entries["system"], cell.seed), set()).add(cell.rng_seed)
    assert all(len(seeds) == 1 for seeds in by_block.values())
    assert len(set.union(*by_block.values())) == len(by_block)


def test_a_key_follows_the_content_not_the_name(make_study: MakeStudy) -> None:
    same = {"model": {"ansatz": {"init_args": {"d_model": 16}}}}
    other = {"model": {"ansatz": {"init_args": {"d_model": 32}}}}
    first, twin, different = make_study({"learned": same, "twin": same, "other": other}, seeds=1).cells()
    assert first.key == twin.key != different.key


def test_adding_a_scheme_keeps_the_keys_of_the_others(make_study: MakeStudy) -> None:
    few = make_study({"learned": {"model": {"a": 1}}}).cells()
    more = make_study({"learned": {"model": {"a": 1}}, "new": {"model": {"a": 2}}}).cells()
    assert {cell.key for cell in few} < {cell.key for cell in more}


def test_a_fragment_may_be_a_file_beside_the_study(tmp_path: Path) -> None:
    (tmp_path / "rotary.yaml").write_text("model: {ansatz: {init_args: {d_model: 8}}}")
    study = {
        "axes": {"scheme": {"r": "rotary.yaml", "inline": {"model": {"x": {"class_path": "no.such.Class"}}}}},
        "base": {"trainer": {"max_steps": 1}},
        "compare": "scheme",
        "baseline": "r",
        "folder": "out",
    }
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study, sort_keys=False))
    parsed = parser().parse_args(["--config", str(tmp_path / "study.yaml"), "--seeds", "1"])
    for key in ("config", "jobs", "shard"):
        parsed.pop(key)
    file, inline = Study(**parsed.as_dict()).cells()
    assert file.config == {"trainer": {"max_steps": 1}, "model": {"ansatz": {"init_args": {"d_model": 8}}}}
    assert inline.config["model"] == {"x": {"class_path": "no.such.Class"}}


def test_a_section_that_fit_does_not_have_is_refused() -> None:
    with pytest.raises(UserError, match="model, data, trainer"):
        Fragment({"modle": {}})


def test_a_baseline_outside_its_axis_is_refused(make_study: MakeStudy) -> None:
    with pytest.raises(UserError, match="baseline 'nobody'"):
        make_study(baseline="nobody")


@pytest.mark.parametrize("count", [1, 2, 5, 16])
def test_shards_share_out_every_cell_once(make_study: MakeStudy, count: int) -> None:
    cells = make_study(seeds=3).cells()
    shares = [Shard.parse(f"{index}/{count}").of(cells) for index in range(1, count + 1)]
    assert sorted(cell.key for share in shares for cell in share) == sorted(cell.key for cell in cells)


def test_a_slurm_array_is_a_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Shard.parse(None) == Shard(0, 1)
    for name, value in {"ID": 14, "MIN": 10, "MAX": 20, "STEP": 2}.items():
        monkeypatch.setenv(f"SLURM_ARRAY_TASK_{name}", str(value))
    assert Shard.parse(None) == Shard(2, 6)
    assert Shard.parse("1/3") == Shard(0, 3)


@pytest.mark.parametrize("text", ["0/3", "4/3", "3", "a/b", "1/0"])
def test_an_impossible_shard_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="i/n"):
        Shard.parse(text)


def test_fresh_seeds_are_the_later_ones_of_a_longer_study(make_study: MakeStudy) -> None:
    whole = [cell.key for cell in make_study(seeds=5).cells() if cell.seed >= 4]
    fresh = make_study(seeds=2)
    fresh.first_seed = 4
    assert [cell.key for cell in fresh.cells()] == whole
