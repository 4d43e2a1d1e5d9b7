"""Cells: run once, kept whole, the same in any process; and a scheme of the user's own among them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_study import POSITIONAL, scheme

from nnqs_lightning.study.cells import cell_path, finished, pending, run_cells
from nnqs_lightning.study.design import Shard, Study

MakeStudy = Callable[..., Study]

OWN_SCHEME = '''
import torch
from torch import nn
from nnqs_lightning.nn.positional import PositionalScheme

class Parity(PositionalScheme):
    """A bias that tells even from odd distances; `depth` scales it."""

    extension = "works at any length"

    def __init__(self, context, depth: float = 1.0):
        super().__init__(context)
        self.depth = depth
        self.weights = nn.Parameter(torch.zeros(context.n_heads))

    def bias(self, q, k, q_positions, k_positions):
        odd = (q_positions[:, None] - k_positions[None, :]) % 2
        return self.depth * self.weights[:, None, None] * odd.to(q.dtype)
'''


def run_all(study: Study, jobs: int = 1) -> dict[str, float]:
    return {
        cell.label: result["error_mha"]
        for cell, result in run_cells(study.folder, pending(study.folder, study.cells()), jobs)
    }


def test_a_finished_cell_is_not_run_again(make_study: MakeStudy) -> None:
    study = make_study(seeds=1)
    assert len(run_all(study)) == 3
    assert run_all(study) == {}
    wider = make_study(seeds=2, folder=study.folder)
    assert set(run_all(wider)) == {cell.label for cell in wider.cells() if cell.seed == 2}


def test_a_repeated_cell_gives_the_same_energies(make_study: MakeStudy) -> None:
    study = make_study(seeds=1)
    first = run_all(study)
    for cell in study.cells():
        cell_path(study.folder, cell).unlink()
    assert run_all(study) == first


def test_a_result_is_kept_whole_or_not_at_all(make_study: MakeStudy, monkeypatch: pytest.MonkeyPatch) -> None:
    study = make_study(seeds=1)

    def cut_short(cell: object) -> dict[str, float]:
        raise KeyboardInterrupt

    monkeypatch.setattr("nnqs_lightning.study.measure.measure", cut_short)
    with pytest.raises(KeyboardInterrupt):
        run_all(study)
    assert finished(study.folder, study.cells()) == []


def test_a_failing_cell_is_recorded_and_tried_again(make_study: MakeStudy) -> None:
    impossible = scheme(f"{POSITIONAL}.Rotary", fraction=7.0)
    study = make_study({"learned": scheme(f"{POSITIONAL}.LearnedAbsolute"), "bad": impossible}, seeds=1)
    good, bad = (result for _, result in run_cells(study.folder, study.cells(), 1))
    assert "failure" not in good
    assert bad["failure"].startswith("UserError")
    assert "fraction" in bad["failure"]
    assert [cell.entries["scheme"] for cell in pending(study.folder, study.cells())] == ["bad"]


def test_shares_of_an_array_complete_each_other(make_study: MakeStudy) -> None:
    study = make_study(seeds=1)
    for share in ("1/2", "2/2"):
        list(run_cells(study.folder, Shard.parse(share).of(study.cells()), 1))
    assert pending(study.folder, study.cells()) == []


@pytest.mark.slow
def test_parallel_processes_give_the_same_energies(make_study: MakeStudy) -> None:
    study = make_study(seeds=1)
    alone = run_all(study)
    for cell in study.cells():
        cell_path(study.folder, cell).unlink()
    assert run_all(study, jobs=2) == alone


def test_a_scheme_outside_the_package_trains_through_the_config_alone(
    make_study: MakeStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_schemes.py").write_text(OWN_SCHEME)
    monkeypatch.syspath_prepend(tmp_path)
    assert len(OWN_SCHEME.strip().splitlines()) <= 20
    parity = scheme("my_schemes.Parity", depth=2.0)
    study = make_study({"learned": scheme(f"{POSITIONAL}.LearnedAbsolute"), "parity": parity}, seeds=1)
    run_all(study)
    own = json.loads(cell_path(study.folder, study.cells()[1]).read_text())
    assert own["trace_mha"][1] < own["trace_mha"][0]
    assert own["inspection"]["bias"] is not None
    assert own["config"]["model"]["ansatz"]["init_args"]["positional"]["class_path"] == "my_schemes.Parity"
