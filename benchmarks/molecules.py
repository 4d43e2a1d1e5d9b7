"""Every benchmark molecule with the shipped configuration: error to FCI, time, spin, beside coupled cluster.

    python benchmarks/molecules.py [--quick] [--json FILE] [--molecules h2o n2 cr2_cas curve …] [--seeds N]
        [--limit MINUTES] [--runs FOLDER] [--docs FOLDER] [--report-only]

Settings of each system stand in benchmarks/molecules.yaml. A cell is a ``fit`` and a ``validate`` of the command line
in a folder of its own: finished cells are not run again, an interrupted one goes on from its last checkpoint, and one
whose configuration has changed is another cell. Without the data folder beside the repository only the molecules of
configs/ run. The report (a page and two plots) is written anew after every cell, with every cell of the table that is
finished, whichever were asked for.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import yaml
from molecules_cells import ROOT, Cell, compile_kernels, finished, plan, run
from molecules_report import screen_table, write_report
from rich.console import Console

QUICK = ["h2", "lih"]


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="H2 and LiH, one seed, without a page, within a minute")
    parser.add_argument("--json", type=Path, help="write the figures of all cells to this file")
    parser.add_argument("--molecules", nargs="+", help="names in the table, or curve; all by default")
    parser.add_argument("--seeds", type=int, help="of every system; as many as the table says by default")
    parser.add_argument("--limit", type=float, default=30.0, help="minutes of training after which a cell stops")
    parser.add_argument("--table", type=Path, default=Path(__file__).with_name("molecules.yaml"))
    parser.add_argument("--runs", type=Path, default=None, help="folder of the cells; runs/molecules by default")
    parser.add_argument("--docs", type=Path, default=None, help="folder of the page; docs/results by default")
    parser.add_argument("--report-only", action="store_true", help="run nothing: report the cells that are finished")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.molecules, chosen.seeds = chosen.molecules or QUICK, 1
    chosen.runs = chosen.runs or Path("runs") / ("molecules-quick" if chosen.quick else "molecules")
    chosen.docs = chosen.docs or (None if chosen.quick else ROOT / "docs" / "results")
    return chosen


def main() -> None:
    """Run what is missing, and report."""
    arguments = options()
    console = Console(width=170)
    table = yaml.safe_load(arguments.table.read_text(encoding="utf-8"))
    names = [*table["molecules"], *table["fcidumps"], "curve"]
    unknown = sorted(set(arguments.molecules or []) - set(names))
    if unknown:
        raise SystemExit(f"--molecules {' '.join(unknown)}: expected names of {arguments.table}: {' '.join(names)}")
    cells, skipped = plan(table, arguments.runs, arguments.seeds)
    wanted = set(arguments.molecules or names)
    for name, reason in skipped.items():
        if name in wanted:
            console.print(f"{name} is skipped: {reason}")
    missing = [cell for cell in cells if (cell.name in wanted or cell.group in wanted) and cell.result() is None]
    if missing and not arguments.report_only:
        compile_kernels()
        for number, cell in enumerate(missing, 1):
            console.print(f"{number}/{len(missing)} {cell.name} seed {cell.seed}: {cell.folder}")
            console.print(f"    {outcome(run(cell, round(60 * arguments.limit)))}")
            report(arguments, cells, skipped)
    console.print(screen_table(report(arguments, cells, skipped)))


def report(arguments: argparse.Namespace, cells: list[Cell], skipped: dict[str, str]) -> list[dict[str, Any]]:
    """Write page, plots and figures of the cells finished so far."""
    results = finished(cells)
    if arguments.docs and results:
        missing = [f"{cell.name} (seed {cell.seed})" for cell in cells if cell.result() is None]
        write_report(arguments.docs, results, missing, skipped, arguments.limit)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return results


def outcome(result: dict[str, Any]) -> str:
    if "failure" in result:
        return f"failed: {result['failure']}"
    error = "" if result["exact"] is None else f"{1e3 * (result['energies']['network'] - result['exact']):+.3f} mHa, "
    return f"{error}{result['steps']} steps, {result['cpu_s']:.0f} CPU seconds"


if __name__ == "__main__":
    main()
