"""Where parameters start: from a checkpoint of this system or another, or fitted to a cheap state."""

from __future__ import annotations

import csv
import time
from pathlib import Path

import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_only
from torch import Tensor

from nnqs_lightning import distributed
from nnqs_lightning.ansatz import Ansatz, TransformerAnsatz
from nnqs_lightning.ansatz.loading import load_matching
from nnqs_lightning.errors import UserError
from nnqs_lightning.hamiltonian import MolecularHamiltonian
from nnqs_lightning.optim import Pretraining
from nnqs_lightning.training.resume import resolve_ckpt_path
from nnqs_lightning.training.strategies.shards import is_sharded, read_whole

PREFIX = "ansatz."


def read_ansatz_state(path: str | Path) -> dict[str, Tensor]:
    """State of the ansatz in a checkpoint: a file, a folder of shards, a numbered folder or a run folder.

    Raises:
        UserError: nothing there, a damaged checkpoint, or one without an ansatz.
    """
    if not Path(path).exists():
        raise UserError(f"model.init_from: no checkpoint {path}")
    state_file = resolve_ckpt_path(".", str(path))
    assert state_file is not None
    whole = is_sharded(state_file)
    checkpoint = read_whole(state_file) if whole else torch.load(state_file, map_location="cpu", weights_only=False)
    state = {
        name.removeprefix(PREFIX): value
        for name, value in checkpoint.get("state_dict", {}).items()
        if name.startswith(PREFIX)
    }
    if not state:
        raise UserError(f"model.init_from: {path} holds no ansatz, expected a checkpoint of a fit")
    return state


def init_from(ansatz: Ansatz, path: str | Path) -> None:
    """Load into ``ansatz`` what fits of the checkpoint at ``path``, and tell what did not."""
    if not isinstance(ansatz, TransformerAnsatz):
        raise UserError(f"model.init_from starts a TransformerAnsatz, not a {type(ansatz).__name__}")
    report = load_matching(ansatz, read_ansatz_state(path))
    rank_zero_only(print)(f"{path}: {report}")


def pretrain(pretraining: Pretraining, ansatz: Ansatz, hamiltonian: MolecularHamiltonian, folder: Path) -> None:
    """Fit ``ansatz`` to the target of ``pretraining``; rank 0 keeps its progress in ``pretraining.csv``."""
    started = time.monotonic()
    steps = []
    for figures in pretraining.run(ansatz, hamiltonian):
        steps.append({**figures, "pretrain/seconds": time.monotonic() - started})
    if distributed.rank() or not steps:
        return
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "pretraining.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, steps[-1])
        writer.writeheader()
        writer.writerows(steps)
    last = steps[-1]
    print(
        f"supervised start from {type(pretraining.target).__name__}: {len(steps)} steps, "
        f"1 − |⟨target|ψ⟩|² = {last['pretrain/infidelity']:.1e}, {last['pretrain/seconds']:.1f} s",
        flush=True,
    )
