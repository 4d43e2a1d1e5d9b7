"""DDP and DeepSpeed stages 1 to 3 on the machine at hand: short fits of the command line, seconds a step by phase.

    python benchmarks/stages.py [--quick] [--json FILE] [--config configs/n2.yaml] [--accelerator cuda] [--devices 1]
        [--precision bf16-mixed] [--steps 30] [--set KEY=VALUE …]

On a machine with a GPU the fits run there in bf16, elsewhere on the CPU in float32; both can be asked for. AdamW on the
energy gradient without a supervised start, so that every stage does the same work; the first third of the steps is
warm-up. Needs DeepSpeed.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from scaling_tables import columns

from nnqs_lightning.training.profiling import PHASES

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
STRATEGIES = {"ddp": "ddp.yaml"} | {f"zero-{stage}": f"deepspeed-zero{stage}.yaml" for stage in (1, 2, 3)}


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="LiH, six steps, DDP and stage 2")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--config", type=Path, default=CONFIGS / "n2.yaml")
    parser.add_argument("--accelerator", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--precision", help="bf16-mixed on a GPU, 32-true elsewhere, by default")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="further keys of the configuration")
    chosen = parser.parse_args()
    chosen.strategies = list(STRATEGIES)
    if chosen.quick:
        chosen.config, chosen.steps, chosen.strategies = CONFIGS / "lih.yaml", 6, ["ddp", "zero-2"]
    chosen.precision = chosen.precision or ("32-true" if chosen.accelerator == "cpu" else "bf16-mixed")
    if wrong := [pair for pair in chosen.set if "=" not in pair]:
        parser.error(f"--set {' '.join(wrong)}: expected KEY=VALUE, such as model.ansatz.d_model=64")
    return chosen


def fit(strategy: str, chosen: argparse.Namespace) -> dict[str, Any]:
    """Median seconds by phase, logged by one run."""
    with tempfile.TemporaryDirectory() as folder:
        keys = {
            "trainer.accelerator": chosen.accelerator,
            "trainer.devices": chosen.devices,
            "trainer.precision": chosen.precision,
            "trainer.max_steps": chosen.steps,
            "trainer.default_root_dir": folder,
            "model.pretraining": "null",
            **dict(pair.split("=", 1) for pair in chosen.set),
        }
        files = [chosen.config, CONFIGS / "optimizer" / "adamw.yaml", CONFIGS / "trainer" / STRATEGIES[strategy]]
        arguments = [word for file in files for word in ("--config", str(file))]
        arguments += [word for key, value in keys.items() for word in (f"--{key}", str(value))]
        command = [sys.executable, "-m", "nnqs_lightning", "fit", *arguments]
        environment = {"OMP_NUM_THREADS": "1", **os.environ}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{strategy}: fit ended with {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        with (Path(folder) / "metrics.csv").open(newline="", encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if row["time/sample"]]
    steady = rows[len(rows) // 3 :]
    seconds = {phase: statistics.median(float(row[f"time/{phase}"]) for row in steady) for phase in PHASES}
    return {
        "seconds": seconds,
        "step": statistics.median(sum(float(row[f"time/{phase}"]) for phase in PHASES) for row in steady),
        "unique": statistics.median(float(row["sampling/unique"]) for row in steady),
        "energy": float(rows[-1]["energy/mean"]),
    }


def table_of(figures: dict[str, dict[str, Any]], chosen: argparse.Namespace) -> Table:
    where = f"{chosen.devices} × {chosen.accelerator}, {chosen.precision}"
    table = Table(title=f"{chosen.config.stem} on {where}: ms a step, phase by phase the slowest rank's")
    columns(table, "strategy", *PHASES, "step", "determinants", "last energy / Ha")
    for strategy, run in figures.items():
        phases = [f"{1e3 * run['seconds'][phase]:.1f}" for phase in PHASES]
        table.add_row(strategy, *phases, f"{1e3 * run['step']:.1f}", f"{run['unique']:,.0f}", f"{run['energy']:.6f}")
    return table


def main() -> None:
    """Run one strategy after the other."""
    chosen = options()
    figures = {strategy: fit(strategy, chosen) for strategy in chosen.strategies}
    Console(width=150).print(table_of(figures, chosen))
    if chosen.json:
        device = "CPU" if chosen.accelerator == "cpu" else torch.cuda.get_device_name()
        content = {"device": device, "precision": chosen.precision, "torch": torch.__version__, "runs": figures}
        chosen.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
