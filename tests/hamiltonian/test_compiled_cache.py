"""Kernels work where numba finds no place for its cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import nnqs_lightning

SCRIPT = """
import sys
import numpy as np
import torch
import nnqs_lightning
from nnqs_lightning.chem.integrals import MolecularIntegrals
from nnqs_lightning.fock.lookup import find_rows
from nnqs_lightning.hamiltonian import MolecularHamiltonian

hamiltonian = MolecularHamiltonian(MolecularIntegrals(np.eye(2), np.zeros((2, 2, 2, 2)), 0.5, n_alpha=1, n_beta=1))
print(hamiltonian.diagonal(hamiltonian.sector.aufbau()).item(), type(find_rows._cache).__name__)
print(nnqs_lightning.__file__)
"""


def test_kernels_work_where_no_cache_can_be_written(tmp_path: Path) -> None:
    # Permissions do not stop the superuser; a file in the place of a folder stops everybody.
    package = tmp_path / "nnqs_lightning"
    source = Path(nnqs_lightning.__file__).parent
    shutil.copytree(source, package, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in [package, *package.rglob("*/")]:
        if folder.is_dir():
            (folder / "__pycache__").write_text("")
    file = tmp_path / "file"
    file.write_text("")
    environment = {
        **os.environ,
        "NUMBA_CACHE_DIR": str(file / "cache"),
        "HOME": str(file),
        "XDG_CACHE_HOME": str(file),
        "PYTHONPATH": str(tmp_path),
    }
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    value, cache, place = run.stdout.split()
    assert float(value) == 2.5
    assert cache == "NullCache"
    assert Path(place).is_relative_to(tmp_path)
