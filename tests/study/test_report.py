"""Table, report and plots from invented results whose truth is known."""

from __future__ import annotations

import csv
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tiny_study import chain, scheme

from nnqs_lightning.study import plots, report, table
from nnqs_lightning.study.design import Cell, Study
from nnqs_lightning.study.statistics import Interval

MakeStudy = Callable[..., Study]
Results = list[tuple[Cell, dict[str, Any]]]

FACTORS = {"learned": 1.0, "good": 0.2, "same": 1.0, "bad": 6.0}


def invented(study: Study, seed: int = 0) -> Results:
    """Errors of FACTORS times noise of 20 %, traces that fall to them, and attention that is uniform."""
    rng = np.random.default_rng(seed)
    results = []
    for cell in study.cells():
        error = FACTORS[cell.entries["scheme"]] * float(np.exp(0.2 * rng.normal()))
        figures = {
            "error_mha": error,
            "error_bar_mha": 0.0,
            "trace_mha": [100 * error, 10 * error],
            "steps": 2,
            "steps_to_accuracy": 2 if error < 1.6 else None,
            "parameters": 100,
            "cpu_s": 0.1,
            "inspection": {
                "attention": np.full((1, 2, 4, 4), 0.25).tolist(),
                "bias": np.ones((2, 4, 4)).tolist() if cell.entries["scheme"] == "good" else None,
                "order": [3, 2, 1, 0],
            },
        }
        figures["targets"] = {
            name: {
                "zero_shot_mha": 50 * error,
                "zero_shot_error_bar_mha": 7.0,
                "fresh_start_mha": 400.0,
                "steps_saved": 1,
                "moved": figures,
                "fresh": figures,
            }
            for name in study.targets
        }
        results.append((cell, figures))
    return results


@pytest.fixture(scope="module")
def study(make_study: MakeStudy) -> Study:
    named = {name: scheme("x", number=index) for index, name in enumerate(FACTORS)}
    return make_study(named, {"h4": chain(4), "again": chain(4)}, {"h6": chain(6)}, seeds=5)


def test_the_table_has_one_row_for_each_cell(study: Study) -> None:
    results = invented(study)
    path, *_ = table.write(study.folder, table.rows(results))
    with path.open() as stream:
        rows = list(csv.DictReader(stream))
    assert [row["key"] for row in rows] == [cell.key for cell, _ in results]
    assert float(rows[0]["error_mha"]) == results[0][1]["error_mha"]
    assert float(rows[0]["h6/zero_shot_mha"]) == 50 * results[0][1]["error_mha"]
    assert {row["scheme"] for row in rows} == set(FACTORS)


def test_errors_stand_at_their_entry_stratum_and_seed(study: Study) -> None:
    results = invented(study)
    values = table.log_errors(study, results)
    assert values.shape == (4, 2, 5)
    for cell, figures in results:
        entry = list(FACTORS).index(cell.entries["scheme"])
        stratum = ["h4", "again"].index(cell.entries["system"])
        assert values[entry, stratum, cell.seed - 1] == pytest.approx(np.log10(figures["error_mha"]))
    assert table.log_errors(study, results, only={"system": "again"}) == pytest.approx(values[:, 1:])


def test_incomplete_seeds_are_left_out(study: Study) -> None:
    assert table.log_errors(study, invented(study)[:-1]).shape == (4, 2, 4)


def test_failing_never_pays(study: Study) -> None:
    results = invented(study)
    cell, _ = results[0]
    results[0] = (cell, {"failure": "NaN"})
    values = table.log_errors(study, results)
    assert values[0, 0, 0] == values[:, 0, :].max()


def test_errors_below_the_floor_are_equal(study: Study) -> None:
    results = [(cell, {**figures, "error_mha": -1e-5}) for cell, figures in invented(study)]
    assert (table.log_errors(study, results) == np.log10(table.FLOOR_MHA)).all()


@pytest.fixture(scope="module")
def written(study: Study) -> dict[str, Any]:
    """Paths by name; the pair matrices, which need real systems, are given."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "_pairs", lambda cell: {"exchange": np.full((4, 4), 0.1)})
        return {path.name: path for path in report.write(study, invented(study))}


def test_the_report_claims_what_is_there_and_nothing_else(written: dict[str, Any]) -> None:
    text = written["report.md"].read_text()
    better, rest = text.split("Better than learned beyond noise:")[1].split("Worse than learned beyond noise:")
    worse, silent = rest.split("Within noise of learned:")
    assert "good on all" in better
    assert "bad on all" in worse
    assert "same" not in better + worse
    assert "- same: all, h4, again" in silent


def test_the_report_tells_what_moving_is_worth(written: dict[str, Any]) -> None:
    section = written["report.md"].read_text().split("## Moved to h6")[1]
    row = next(line for line in section.splitlines() if line.startswith("| good"))
    assert "| 400.00 |" in row
    assert "1 of 2 (10/10)" in row


def test_every_plot_is_a_png(written: dict[str, Any]) -> None:
    pictures = [path for name, path in written.items() if name.endswith(".png")]
    assert {"ranks.png", "error_vs_steps.png", "attention-h4.png", "bias-h4.png", "moved-to-h6.png"} <= set(written)
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures)


def test_the_rank_diagram_puts_the_best_on_top(study: Study) -> None:
    ranks = [Interval(value, value - 0.1, value + 0.1) for value in (3.0, 1.0, 2.0, 4.0)]
    labels = [text.get_text() for text in plots.rank_diagram(study, ranks).axes[0].get_yticklabels()]
    assert labels == ["bad", "learned", "same", "good"]
