"""What each part of the shipped configurations is worth: error and time without it, or with another in its place.

    python benchmarks/ablations.py [--quick] [--json FILE] [--molecules h2o n2 …] [--variants 'no point group' …]
        [--seeds 3] [--seconds 30] [--runs FOLDER] [--docs FOLDER] [--report-only]

Variants stand in benchmarks/ablations.yaml. Every run trains for the same time after its supervised start, whatever a
step costs. Cells are those of benchmarks/molecules.py: a ``fit`` and a ``validate`` each, finished ones are kept.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import yaml
from molecules_cells import ROOT, Cell, compile_kernels, finished, make_cell, molecule_system, run
from molecules_report import errors, markdown, median, rich_table, spread, times
from rich.console import Console

from nnqs_lightning.study.design import merge

PAGE = "ablations.md"
ABOUT = """# What each part is worth

`python benchmarks/ablations.py` wrote this page: the shipped configurations of `configs/`, one thing changed at a
time (`benchmarks/ablations.yaml`). One thread; every run trained for {seconds} seconds of wall time after its
supervised start.

- *network*: energy of the network by `validate`, every connected determinant included, in mHa above FCI; the median
  over seeds with the worst one in brackets.
- *CPU s*: supervised start included. *to 1.6 mHa*: until a step's energy, the Rayleigh quotient within its sample, is
  that close to FCI.
- *determinants*: size of the sampled set that `validate` drew.
"""


def plan(table: dict[str, Any], runs: Path, seeds: int, seconds: int) -> list[Cell]:
    """Every variant of every molecule, one seed after the other; the group of a cell is its variant."""
    # Part of the configuration, so that cells of another length are other cells.
    common = merge(table["common"], {"trainer": {"max_time": {"seconds": seconds}}})
    cells = []
    for seed in range(1, seeds + 1):
        for molecule in table["molecules"]:
            system = molecule_system(molecule, None, 0)
            assert system is not None, molecule
            for variant, settings in table["variants"].items():
                if molecule in settings.get("only", [molecule]):
                    merged = {**settings, "like": molecule, "set": merge(common, settings.get("set", {}))}
                    cells.append(make_cell(variant, molecule, seed, merged, system, runs, {}))
    return cells


def rows_of(cells: list[Cell]) -> dict[str, list[dict[str, str]]]:
    """Rows of the finished cells by molecule."""
    tables: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for result in finished(cells):
        tables.setdefault(result["name"], {}).setdefault(result["group"], []).append(result)
    return {
        molecule: [
            {
                "variant": variant,
                "network": spread(errors(seeds, "network")),
                "subspace": spread(errors(seeds, "subspace")),
                "to 1.6 mHa": times(seeds),
                "steps": median(seeds, "steps"),
                "CPU s": median(seeds, "cpu_s"),
                "determinants": median(seeds, "set_size"),
                "seeds": str(len(seeds)),
            }
            for variant, seeds in variants.items()
        ]
        for molecule, variants in tables.items()
    }


def write_page(folder: Path, cells: list[Cell], seconds: int) -> None:
    lines = [ABOUT.format(seconds=seconds)]
    for molecule, rows in rows_of(cells).items():
        lines += [f"## {molecule}", "", markdown(rows)]
    missing = [f"{c.name}, {c.group} (seed {c.seed})" for c in cells if c.result() is None]
    if missing:
        lines += [f"Not finished: {'; '.join(missing)}."]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PAGE).write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


def show(console: Console, cells: list[Cell]) -> None:
    for molecule, rows in rows_of(cells).items():
        console.print(rich_table(molecule, rows))


def read_options() -> tuple[argparse.Namespace, dict[str, Any]]:
    """Command line and table of variants; wrong names end the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="LiH, two variants, one second each, no page")
    parser.add_argument("--json", type=Path, help="write the figures of all cells to this file")
    parser.add_argument("--molecules", nargs="+")
    parser.add_argument("--variants", nargs="+")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--table", type=Path, default=Path(__file__).with_name("ablations.yaml"))
    parser.add_argument("--runs", type=Path, default=None, help="runs/ablations by default")
    parser.add_argument("--docs", type=Path, default=None, help="folder of the page; docs/results by default")
    parser.add_argument("--report-only", action="store_true", help="run nothing: report the cells that are finished")
    chosen = parser.parse_args()
    table = yaml.safe_load(chosen.table.read_text(encoding="utf-8"))
    if chosen.quick:
        chosen.molecules, chosen.seeds, chosen.seconds = ["lih"], 1, 1
        table["molecules"] = chosen.molecules
        chosen.variants = chosen.variants or ["as shipped", "AdamW"]
    chosen.molecules = chosen.molecules or table["molecules"]
    chosen.variants = chosen.variants or list(table["variants"])
    chosen.runs = chosen.runs or Path("runs") / ("ablations-quick" if chosen.quick else "ablations")
    chosen.docs = chosen.docs or (None if chosen.quick else ROOT / "docs" / "results")
    unknown = [name for name in chosen.variants if name not in table["variants"]]
    unknown += [name for name in chosen.molecules if name not in table["molecules"]]
    if unknown:
        known = [*table["molecules"], *table["variants"]]
        parser.error(f"{unknown}: expected molecules and variants of {chosen.table}: {', '.join(known)}")
    return chosen, table


def main() -> None:
    """Run what is missing, and report."""
    options, table = read_options()
    console = Console(width=130)
    cells = plan(table, options.runs, options.seeds, options.seconds)
    asked = [cell for cell in cells if cell.group in options.variants and cell.name in options.molecules]
    waiting = [] if options.report_only else [cell for cell in asked if cell.result() is None]
    if waiting:
        compile_kernels()
    for number, cell in enumerate(waiting, 1):
        result = run(cell, options.seconds)
        outcome = result.get("failure") or f"{spread(errors([result], 'network'))} mHa, {result['steps']} steps"
        console.print(f"{number}/{len(waiting)} {cell.name}, {cell.group}, seed {cell.seed}: {outcome}")
        report(options, cells)
    report(options, cells)
    show(console, cells)


def report(options: argparse.Namespace, cells: list[Cell]) -> None:
    """Write page and figures of the cells finished so far."""
    if options.docs:
        write_page(options.docs, cells, options.seconds)
    if options.json:
        options.json.write_text(json.dumps(finished(cells), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
