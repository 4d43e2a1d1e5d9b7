"""Configurations parse, overlay and are refused by name; one fits in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnqs_lightning.cli import NNQSCLI, main
from nnqs_lightning.errors import UserError

ROOT = Path(__file__).parents[1]
CONFIGS = ROOT / "configs"
MOLECULES = sorted(CONFIGS.glob("*.yaml"))
FRAGMENTS = sorted(
    path for folder in ("position", "optimizer", "trainer") for path in (CONFIGS / folder).glob("*.yaml")
)


class ParsedOnly(NNQSCLI):
    """Stops where classes would be instantiated."""

    def _set_seed(self) -> None: ...
    def before_instantiate_classes(self) -> None: ...
    def instantiate_classes(self) -> None: ...
    def _run_subcommand(self, subcommand: str) -> None: ...


def parse(*args: str | Path) -> Any:
    return ParsedOnly(["fit", *map(str, args)]).config["fit"]


@pytest.mark.parametrize("path", MOLECULES, ids=lambda path: path.stem)
def test_every_molecule_parses(path: Path):
    config = parse("--config", path)
    assert config.model.system.class_path.startswith("nnqs_lightning.chem.")
    assert config.trainer.default_root_dir == f"runs/{path.stem}"


@pytest.mark.parametrize("path", FRAGMENTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_fragment_lies_over_a_molecule(path: Path):
    plain = parse("--config", CONFIGS / "lih.yaml")
    config = parse("--config", CONFIGS / "lih.yaml", "--config", path)
    assert config.model.system == plain.model.system
    assert config != plain or path.stem in ("learned", "spring")


def test_interpolation_works(tmp_path: Path):
    (tmp_path / "more.yaml").write_text(
        "seed_everything: 7\ntrainer: {default_root_dir: 'runs/h2/${seed_everything}'}\n", encoding="utf-8"
    )
    assert parse("--config", CONFIGS / "h2.yaml", "--config", tmp_path / "more.yaml").trainer.default_root_dir == (
        "runs/h2/7"
    )


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--model.foo", "1"], "model.foo"),
        (["--model.ansatz.foo", "1"], "foo"),
        (["--model.ansatz.positional", "NoPositional", "--model.ansatz.positional.theta", "1"], "theta"),
        (["--model.ansatz.positional", "collections.OrderedDict"], "OrderedDict"),
        (["--data.sampler", "NoSuchSampler"], "NoSuchSampler"),
        (["--model.ansatz.d_model", "wide"], "d_model"),
        (["--config", "missing.yaml"], "missing.yaml"),
    ],
)
def test_a_wrong_class_or_key_is_refused_by_name_at_parse_time(arguments: list[str], named: str):
    with pytest.raises(UserError, match=named):
        main(["fit", "--config", str(CONFIGS / "h2.yaml"), *arguments])


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--model.ansatz.n_heads", "5"], "model.ansatz.n_heads"),
        (["--data.sampler.n_walkers", "0"], "data.sampler.n_walkers"),
        (["--model.system.spin", "1"], "model.system.spin"),
        (["--model.system.atoms", "[[Xx, 0, 0, 0]]"], "model.system.atoms"),
        (["--model.system.active_space", "{n_electrons: 8, n_orbitals: 9}"], "model.system.active_space"),
        (["--model.system", "Fcidump", "--model.system.path", "missing.FCIDUMP"], "missing.FCIDUMP"),
        (["--model.init_from", "missing.ckpt"], "model.init_from"),
        (["--ckpt_path", "last"], "--ckpt_path last"),
        (["--checkpoint.keep", "0"], "checkpoint.keep"),
    ],
)
def test_bad_input_names_the_key_to_change(arguments: list[str], named: str, tmp_path: Path):
    with pytest.raises(UserError, match=named):
        main(["fit", "--config", str(CONFIGS / "h2.yaml"), "--trainer.default_root_dir", str(tmp_path), *arguments])


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nnqs_lightning", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


def test_errors_take_one_line_and_no_traceback(tmp_path: Path):
    result = run("fit", "--config", CONFIGS / "h2.yaml", "--trainer.default_root_dir", tmp_path, "--model.max_rows=0")
    assert result.returncode == 2
    assert result.stderr.strip().splitlines() == [
        "error: model.max_rows is 0, expected at least 1 (set NNQS_TRACEBACK=1 for the traceback)"
    ]


@pytest.mark.slow
def test_a_run_leaves_its_records_and_later_commands_use_them(tmp_path: Path):
    common = ["--config", CONFIGS / "h2.yaml", "--trainer.default_root_dir", tmp_path, "--trainer.accelerator", "cpu"]
    result = run("fit", *common, "--trainer.max_steps", "3")
    assert result.returncode == 0, result.stderr
    for name in ("config.yaml", "metrics.csv", "summary.json", "convergence.png", "checkpoints"):
        assert (tmp_path / name).exists(), name
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["e_fci"] == pytest.approx(-0.9981493534, abs=1e-8)
    assert summary["error_mha"] == pytest.approx(1e3 * (summary["energy"] - summary["e_fci"]))
    assert summary["steps"] == 3

    refused = run("fit", *common)
    assert refused.returncode == 2
    assert "--ckpt_path auto" in refused.stderr

    tested = run("test", *common)
    assert tested.returncode == 0, tested.stderr
    assert f"{summary['energy']:.4f}" in tested.stdout
    assert len((tmp_path / "metrics.csv").read_text().splitlines()) == 4

    predicted = run("predict", *common)
    assert predicted.returncode == 0, predicted.stderr
    with np.load(tmp_path / "determinants.npz") as table:
        assert table["determinants"].shape == (2, 2, 1)  # σ_g² and σ_u²: the others are of another irrep
        assert np.exp(2 * table["log_psi"].real).sum() == pytest.approx(1, abs=1e-5)

    resumed = run("fit", *common, "--trainer.max_steps", "5", "--ckpt_path", "last")
    assert resumed.returncode == 0, resumed.stderr
    assert json.loads((tmp_path / "summary.json").read_text())["steps"] == 5


def test_help_imports_neither_chemistry_nor_deepspeed():
    code = (
        "import sys\nfrom nnqs_lightning.__main__ import main\nsys.argv = ['nnqs_lightning', 'fit', '--help']\n"
        "try:\n    main()\nexcept SystemExit: pass\n"
        "heavy = {name.split('.')[0] for name in sys.modules} & {'pyscf', 'deepspeed', 'numba'}\n"
        "print('HEAVY', sorted(heavy))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert result.stdout.rstrip().endswith("HEAVY []"), result.stdout[-300:] + result.stderr[-300:]
