"""The cells of the molecule benchmark: what runs, with which configuration, and what a finished run leaves."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from nnqs_lightning.study.design import merge

ROOT = Path(__file__).resolve().parents[1]
CONFIGS = ROOT / "configs"
DATA = ROOT.parent / "shared" / "data"
CHEMICAL_ACCURACY = 1.6e-3
"""Hartree."""

Config = dict[str, Any]


class System(NamedTuple):
    """A line of a table, and the system that it names."""

    group: str
    name: str
    settings: Config
    system: Config
    """``model.system``"""
    known: Config


@dataclass(frozen=True)
class Cell:
    """One training run and its final figures."""

    group: str
    """Table of the page in which it stands."""
    name: str
    seed: int
    config: Config
    folder: Path
    known: dict[str, Any]
    """What the literature or the data folder says of this system: ``exact``, ``by``, ``e_ccsd``, …"""

    @property
    def result_path(self) -> Path:
        return self.folder / "cell.json"

    def result(self) -> dict[str, Any] | None:
        """What it left, if it has run to its end; a failure is none."""
        if not self.result_path.is_file():
            return None
        result = json.loads(self.result_path.read_text(encoding="utf-8"))
        return None if "failure" in result else result


def finished(cells: list[Cell]) -> list[dict[str, Any]]:
    """What those left that have run to their end."""
    return [result for cell in cells if (result := cell.result()) is not None]


def plan(table: Config, runs: Path, seeds: int | None) -> tuple[list[Cell], dict[str, str]]:
    """Every cell, one seed after the other, and why systems of the table are left out.

    Args:
        table: as in molecules.yaml.
        runs: folder of the cells.
        seeds: how many of each; None for as many as the table says.
    """
    references = DATA / "reference" / "molecules.json"
    known = json.loads(references.read_text(encoding="utf-8")) if references.is_file() else {}
    skipped: dict[str, str] = {}
    systems = [*_molecules(table, known, skipped), *_fcidumps(table, skipped)]

    def count(settings: Config) -> int:
        return settings.get("seeds", table["seeds"]) if seeds is None else seeds

    cells: list[Cell] = []
    most = max(count(settings) for settings in (table["curve"], *(system.settings for system in systems)))
    for seed in range(1, most + 1):
        for group, name, settings, system, of_system in systems:
            if seed <= count(settings):
                cells.append(make_cell(group, name, seed, settings, system, runs, of_system))
        if seed <= count(table["curve"]):
            cells += _curve(table["curve"], seed, runs, known)
    return cells, skipped


def _molecules(table: Config, known: Config, skipped: dict[str, str]) -> Iterator[System]:
    """Every molecule that has a geometry."""
    for name, settings in table["molecules"].items():
        system = molecule_system(name, known.get(name), table["max_fci_determinants"])
        if system is None:
            skipped[name] = f"no geometry: neither configs/{name}.yaml nor a molecules.json beside the repository"
            continue
        exact = {"exact": known[name]["e_fci"], "by": "FCI", **known[name]} if name in known else {}
        yield System("molecules", name, settings, system, exact)


def _fcidumps(table: Config, skipped: dict[str, str]) -> Iterator[System]:
    """Every file of integrals that is there."""
    for name, settings in table["fcidumps"].items():
        path = DATA / "fcidump" / f"{name}.FCIDUMP"
        if not path.is_file():
            skipped[name] = f"no file {os.path.relpath(path)}"
            continue
        arguments = {"path": os.path.relpath(path), "max_fci_determinants": table["max_fci_determinants"]}
        system = {"class_path": "nnqs_lightning.chem.Fcidump", "init_args": arguments}
        yield System("fcidumps", name, settings, system, {key: settings[key] for key in ("exact", "by")})


def molecule_system(name: str, known: Config | None, max_fci_determinants: int) -> Config | None:
    """``model.system`` of a molecule: from its shipped configuration, else from the data folder; None if in neither."""
    shipped = CONFIGS / f"{name}.yaml"
    if shipped.is_file():
        system = yaml.safe_load(shipped.read_text(encoding="utf-8"))["model"]["system"]
    elif known is not None:
        geometry = {"atoms": known["atoms"], "unit": known["unit"], "basis": known["basis"].lower()}
        charges = {"charge": known["charge"], "spin": known["multiplicity"] - 1}
        arguments = {"name": name, **geometry, **charges, "symmetry": True}
        system = {"class_path": "nnqs_lightning.chem.Molecule", "init_args": arguments}
    else:
        return None
    if known is None:
        return system
    return merge(system, {"init_args": {"max_fci_determinants": max_fci_determinants}})


def _curve(curve: Config, seed: int, runs: Path, known: Config) -> Iterator[Cell]:
    """The points of a stretched bond, each started from the checkpoint of the one before."""
    before: Cell | None = None
    shipped = yaml.safe_load((CONFIGS / f"{curve['system']}.yaml").read_text(encoding="utf-8"))["model"]["system"]
    for bond in curve["bonds"]:
        element = shipped["init_args"]["atoms"][0][0]
        name = f"{curve['system']}_{bond:g}"
        atoms = [[element, 0.0, 0.0, 0.0], [element, 0.0, 0.0, bond]]
        system = merge(shipped, {"init_args": {"name": name, "atoms": atoms}})
        settings = curve
        if before is not None:
            settings = merge(settings, {"set": {"model": {"init_from": str(before.folder)}}})
        reference = {k: v for k, v in known.get(name, {}).items() if k in ("e_hf", "e_ccsd", "e_ccsd_t", "e_fci")}
        before = make_cell("curve", name, seed, settings, system, runs, {**reference, "bond": bond})
        yield before


def make_cell(group: str, name: str, seed: int, settings: Config, system: Config, runs: Path, known: Config) -> Cell:
    """The cell of a line of a table (see molecules.yaml), in a folder named after ``name`` and its configuration."""
    config = yaml.safe_load((CONFIGS / f"{settings['like']}.yaml").read_text(encoding="utf-8"))
    config["model"]["system"] = system
    if "steps" in settings:
        config = merge(config, {"trainer": {"max_steps": settings["steps"]}})
    if "unique" in settings:
        config = merge(config, {"data": {"sampler": {"init_args": {"target_unique": settings["unique"]}}}})
    # ``validate`` draws again, with everything that is known of the sample.
    config = merge(config, {"seed_everything": seed, "report": {"final_draws": 0}})
    for fragment in settings.get("fragments", []):
        config = merge(config, yaml.safe_load((CONFIGS / fragment).read_text(encoding="utf-8")))
    config = merge(config, settings.get("set", {}))
    del config["trainer"]["default_root_dir"]
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:8]
    return Cell(group, name, seed, config, runs / f"{name}-s{seed}-{digest}", known)


def compile_kernels() -> None:
    """Fit and validate LiH for two steps: kernels that were never compiled here must not count in a cell's time."""
    system = molecule_system("lih", None, 0)
    assert system is not None
    with tempfile.TemporaryDirectory() as folder:
        cell = make_cell("molecules", "lih", 0, {"like": "lih", "steps": 2}, system, Path(folder), {})
        run(cell, 600)


def run(cell: Cell, limit_s: int) -> dict[str, Any]:
    """Train, validate, and keep the figures; goes on where an interrupted run stopped.

    Args:
        cell: what to run.
        limit_s: wall time after which training ends with the state that it has.
    """
    cell.folder.mkdir(parents=True, exist_ok=True)
    config = cell.folder / "cell.yaml"
    hours, rest = divmod(limit_s, 3600)
    limits = {"default_root_dir": str(cell.folder), "max_time": f"00:{hours:02}:{rest // 60:02}:{rest % 60:02}"}
    config.write_text(yaml.safe_dump(merge(cell.config, {"trainer": limits}), sort_keys=False), encoding="utf-8")
    try:
        if not (cell.folder / "summary.json").is_file():
            _command(cell, "fit", limit_s)
        if not _figure_files(cell):
            _command(cell, "validate", limit_s)
        result = figures(cell)
    except (subprocess.SubprocessError, OSError, ValueError, KeyError) as error:
        result = {"group": cell.group, "name": cell.name, "seed": cell.seed, "failure": " ".join(str(error).split())}
    temporary = cell.result_path.with_suffix(".tmp")
    temporary.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    temporary.replace(cell.result_path)
    return result


def _command(cell: Cell, command: str, limit_s: int) -> None:
    arguments = [command, "--config", str(cell.folder / "cell.yaml"), "--ckpt_path", "auto"]
    environment = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", **os.environ}
    log = cell.folder / f"{command}.log"
    with log.open("a", encoding="utf-8") as output:
        done = subprocess.run(
            [sys.executable, "-m", "nnqs_lightning", *arguments],
            stdout=output, stderr=subprocess.STDOUT, env=environment, timeout=limit_s + 1800, check=False,
        )  # fmt: skip
    if done.returncode:
        tail = log.read_text(encoding="utf-8").strip().splitlines()[-1:]
        raise subprocess.SubprocessError(f"{command} ended with {done.returncode}: {''.join(tail)} (see {log})")


def _figure_files(cell: Cell) -> list[Path]:
    return sorted(cell.folder.glob("figures*.json"), key=lambda path: path.stat().st_mtime)


def figures(cell: Cell) -> dict[str, Any]:
    """Figures of a finished run, energies in hartree."""
    summary = json.loads((cell.folder / "summary.json").read_text(encoding="utf-8"))
    final = json.loads(_figure_files(cell)[-1].read_text(encoding="utf-8"))
    references = {name: cell.known.get(f"e_{name}", summary[f"e_{name}"]) for name in ("hf", "ccsd", "ccsd_t")}
    exact = cell.known.get("exact", summary["e_fci"])
    return {
        "group": cell.group,
        "name": cell.name,
        "seed": cell.seed,
        **({"bond": cell.known["bond"]} if "bond" in cell.known else {}),
        **references,
        "exact": exact,
        "exact_by": cell.known.get("by", "FCI"),
        "fci_here": summary["e_fci"],
        "energies": {key: row["energy"] for key, row in final["rows"].items()},
        "errors": {key: row["error"] for key, row in final["rows"].items()},
        "variational": {key: row["variational"] for key, row in final["rows"].items()},
        "s2": final["set"]["s2_network"],
        "s2_subspace": final["set"]["s2_subspace"],
        "overlap": final["set"]["overlap"],
        "set_size": final["set"]["n_sampled"],
        **{key: final[key] for key in ("n_orb", "n_alpha", "n_beta")},
        "steps": summary["steps"],
        "max_steps": cell.config["trainer"]["max_steps"],
        "cpu_s": summary["cpu_s"],
        "wall_s": summary["wall_s"],
        "cpu_s_to_accuracy": cpu_seconds_to(cell.folder / "metrics.csv", exact),
        "parameters": summary["parameters"],
        "versions": summary["versions"],
    }


def cpu_seconds_to(metrics: Path, exact: float | None) -> float | None:
    """CPU seconds after start-up to the first step whose energy is within chemical accuracy; None if there is none.

    The energy of a training step is the Rayleigh quotient within its sample and so never too low.
    """
    if exact is None:
        return None
    with metrics.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["energy/mean"] and float(row["energy/mean"]) < exact + CHEMICAL_ACCURACY:
                return float(row["time/cpu"])
    return None
