"""One cluster for every test of this folder."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from one_host_cluster import OneHostCluster, why_not

REPOSITORY = Path(__file__).parents[2]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marked, so that they can run alone: jobs with real time limits want the cores for themselves."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slurm)
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def cluster() -> Iterator[OneHostCluster]:
    reason = why_not()
    if reason:
        pytest.skip(f"SLURM: {reason}")
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
    cluster = OneHostCluster(folder, REPOSITORY, port=16900 + 10 * worker)
    cluster.start()
    yield cluster
    cluster.stop()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the run folders, with a site's own env.sh."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "env.sh").write_text(
        f"export PATH={Path(sys.executable).parent}:$PATH\n"
        f"export PYTHONPATH={Path(__file__).parent} NUMBA_NUM_THREADS=1 NNQS_CACHE={folder}/cache\n"
        f"export NNQS_RUNS={folder}\n"
    )
    return folder
