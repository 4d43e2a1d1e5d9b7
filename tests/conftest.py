"""Fixtures shared by every room: the folder of real inputs and reference values beside the repository."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Integrals and reference energies are cached in a folder of this run, not in the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NNQS_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with real FCIDUMP files and reference energies; the test is skipped where it does not exist."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"no folder {SHARED_DATA}: this test needs the real inputs and reference values kept there")
    return SHARED_DATA


@pytest.fixture(scope="session")
def fcidump_dir(shared_data: Path) -> Path:
    """FCIDUMP files written by several programs."""
    return shared_data / "fcidump"


@pytest.fixture(scope="session")
def molecules(shared_data: Path) -> dict[str, dict[str, Any]]:
    """Benchmark molecules: geometry, basis, charge, multiplicity and reference energies (hartree) by name."""
    return json.loads((shared_data / "reference" / "molecules.json").read_text())
