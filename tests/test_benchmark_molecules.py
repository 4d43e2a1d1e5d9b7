"""The molecule benchmark plans every system, with the data folder and without, and reports what it has."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import molecules_cells  # noqa: E402
import molecules_report  # noqa: E402

TABLE = yaml.safe_load((BENCHMARKS / "molecules.yaml").read_text())


def planned(runs: Path, table: dict[str, Any] = TABLE) -> Any:
    return molecules_cells.plan(table, runs, 1)


def only_h2(**settings: Any) -> dict[str, Any]:
    return {**TABLE, "molecules": {"h2": {"like": "h2", **settings}}, "fcidumps": {}}


def result(name: str = "n2", seed: int = 1, error: float = 1e-4, **others: Any) -> dict[str, Any]:
    energies = dict.fromkeys(("network", "subspace", "second_order", "zero_variance"), -1.0 + error)
    numbers = {"s2": 0.0, "steps": 9, "max_steps": 10, "cpu_s": 3.0, "cpu_s_to_accuracy": 2.0, "parameters": 5}
    sector = {"n_orb": 10, "n_alpha": 7, "n_beta": 7, "set_size": 100}
    references = {"hf": -0.5, "ccsd": -0.99, "ccsd_t": None, "exact": -1.0, "exact_by": "FCI", "fci_here": -1.0}
    whole = {"group": "molecules", "name": name, "seed": seed, "energies": energies, "versions": {"torch": "2"}}
    return {**whole, **numbers, **sector, **references, **others}


def test_every_reference_molecule_up_to_30_qubits_is_planned(molecules: dict[str, Any], tmp_path: Path):
    cells, skipped = planned(tmp_path)
    assert not skipped
    assert set(molecules) == {cell.name for cell in cells if cell.group != "fcidumps"}
    assert len({cell.folder for cell in cells}) == len(cells)


def test_a_system_runs_as_many_seeds_as_its_line_says(tmp_path: Path):
    table = {
        **TABLE,
        "seeds": 2,
        "molecules": {"h2": {"like": "h2"}, "lih": {"like": "lih", "seeds": 4}},
        "fcidumps": {},
    }
    cells = molecules_cells.plan(table, tmp_path, None)[0]
    seeds = {name: [cell.seed for cell in cells if cell.name == name] for name in ("h2", "lih", "n2_0.75")}
    assert seeds == {"h2": [1, 2], "lih": [1, 2, 3, 4], "n2_0.75": [1, 2]}


def test_planned_configurations_are_those_of_fit(shared_data: Path, tmp_path: Path):
    from nnqs_lightning.study.training import parse

    for cell in planned(tmp_path)[0]:
        if cell.name not in ("h2", "li2o", "h2_eq", "h8_sto6g", "fe2s2_30e20o", "n2_0.75", "n2_0.9"):
            continue
        parse({key: cell.config[key] for key in ("model", "data", "trainer")})
        assert cell.config["seed_everything"] == cell.seed


def test_each_point_of_the_curve_starts_from_the_one_before(tmp_path: Path):
    cells = [cell for cell in planned(tmp_path)[0] if cell.group == "curve"]
    assert [cell.known["bond"] for cell in cells] == sorted(TABLE["curve"]["bonds"])
    assert "init_from" not in cells[0].config["model"]
    for before, after in pairwise(cells):
        assert after.config["model"]["init_from"] == str(before.folder)


def test_without_the_data_folder_shipped_molecules_run_and_others_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(molecules_cells, "DATA", tmp_path / "nowhere")
    cells, skipped = planned(tmp_path)
    assert {"h2", "h2o", "li2o"} <= {cell.name for cell in cells}
    assert {"h2_eq", "cr2_cas"} <= set(skipped)
    assert not {cell.name for cell in cells} & set(skipped)


def test_a_changed_configuration_is_another_cell(tmp_path: Path):
    one, again, other = (planned(tmp_path, table)[0][0] for table in (only_h2(), only_h2(), only_h2(steps=7)))
    assert one.folder == again.folder != other.folder


def test_a_failed_cell_runs_again_and_a_finished_one_does_not(tmp_path: Path):
    cell = planned(tmp_path, only_h2())[0][0]
    assert cell.result() is None
    cell.folder.mkdir()
    cell.result_path.write_text('{"failure": "no memory"}')
    assert cell.result() is None
    cell.result_path.write_text('{"energies": {}}')
    assert cell.result() == {"energies": {}}


def test_time_to_accuracy_is_that_of_the_first_step_within(tmp_path: Path):
    rows = [(-0.9, 1.0), ("", ""), (-0.9985, 2.5), (-0.999, 3.0)]
    path = tmp_path / "metrics.csv"
    path.write_text("energy/mean,time/cpu\n" + "".join(f"{energy},{cpu}\n" for energy, cpu in rows))
    assert molecules_cells.cpu_seconds_to(path, -1.0) == 2.5
    assert molecules_cells.cpu_seconds_to(path, -2.0) is None


def test_the_page_gives_median_and_worst_and_says_what_is_missing(tmp_path: Path):
    cells = [result(seed=seed, error=error) for seed, error in ((1, 1e-4), (2, 2e-4), (3, -5e-4))]
    curve = [result(f"n2_{bond}", group="curve", bond=bond) for bond in (2.1, 0.75)]
    files = [result("cr2_cas", group="fcidumps", fci_here=None, cpu_s_to_accuracy=None)]
    molecules_report.write_report(tmp_path, [*cells, *curve, *files], ["li2o (seed 1)"], {"hcl": "no geometry"}, 30)
    page = (tmp_path / "molecules.md").read_text()
    assert "+0.100 (-0.500)" in page
    assert "99.98%" in page
    assert "| *9* |" in page
    assert "Not finished: li2o (seed 1)." in page
    assert "Skipped: hcl, no geometry." in page
    assert page.index("| 0.75 |") < page.index("| 2.1 |")
    assert {path.name for path in tmp_path.glob("*.png")} == {"molecules-errors.png", "molecules-n2.png"}
