"""Run a script on several gloo ranks of one thread each, and read back what each wrote."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent


def run_ranks(script: str, n_ranks: int, folder: Path, *args: str, timeout: float = 420.0) -> list[Any]:
    """Run ``tests/training/<script>`` with ``folder`` and ``args`` on ``n_ranks`` processes.

    Returns:
        What each rank handed to :func:`report`, in rank order.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    common.update({"TEST_RANKS": str(n_ranks), "NODE_RANK": "0", "CUDA_VISIBLE_DEVICES": ""})
    command = [sys.executable, str(HERE / script), str(folder), *args]
    logs = [(folder / f"rank{rank}.log").open("w") for rank in range(n_ranks)]
    processes = [
        subprocess.Popen(
            command,
            env={**common, "LOCAL_RANK": str(rank), "TEST_RANK": str(rank)},
            stdout=logs[rank],
            stderr=subprocess.STDOUT,
        )
        for rank in range(n_ranks)
    ]
    try:
        codes = [process.wait(timeout=timeout) for process in processes]
    finally:
        for process, log in zip(processes, logs, strict=True):
            process.kill()
            log.close()
    tails = "\n".join((folder / f"rank{rank}.log").read_text()[-3000:] for rank in range(n_ranks))
    assert codes == [0] * n_ranks, tails
    return [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in range(n_ranks)]


def report(folder: str, result: Any) -> None:
    """Hand this rank's result to :func:`run_ranks`."""
    torch.save(result, Path(folder) / f"rank{os.environ['TEST_RANK']}.pt")
