"""Run a function on several real processes that talk over gloo."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import multiprocessing


def on_ranks(world: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """What ``function(*args)`` returns on each rank; it is importable, and so are its arguments."""
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.start_processes(
            _work, (world, folder, function, args), nprocs=world, join=True, start_method="spawn"
        )
        return [torch.load(Path(folder, f"{rank}.pt"), weights_only=False) for rank in range(world)]


def _work(rank: int, world: int, folder: str, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world)
    torch.save(function(*args), Path(folder, f"{rank}.pt"))
    dist.destroy_process_group()
