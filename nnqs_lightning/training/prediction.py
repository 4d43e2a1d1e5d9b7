"""Determinants and amplitudes of a trained wave function, in a file that NumPy opens."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from nnqs_lightning import distributed
from nnqs_lightning.fock import SampleBatch
from nnqs_lightning.training.module import NNQSModule


class PredictionWriter(Callback):
    """Writes ``determinants.npz`` into the run folder at the end of ``predict``.

    Arrays, most probable determinant first: ``determinants`` int64 [N, 2, W] (α words, then β words; bit p of a string
    is orbital p), ``log_psi`` complex128 [N], ``weights`` float64 [N], ``counts`` int64 [N] (walkers; empty if the
    sampler has none), ``n_orb``, ``n_alpha``, ``n_beta``, ``spin_parity``. Where ``spin_parity`` s is 1 or −1, a
    determinant with different strings stands for (|D⟩ + s |D with its strings exchanged⟩) / √2.
    """

    def on_predict_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, *args: Any, **kwargs: Any
    ) -> None:
        assert isinstance(outputs, SampleBatch)
        assert isinstance(pl_module, NNQSModule)
        counts = outputs.counts if outputs.counts is not None else torch.empty(0, dtype=torch.int64)
        columns = {
            "determinants": outputs.determinants,
            "log_psi": outputs.log_psi,
            "weights": outputs.weights,
            "counts": counts,
        }
        arrays = {name: distributed.all_gather_rows(rows)[0].cpu().numpy() for name, rows in columns.items()}
        if not trainer.is_global_zero:
            return
        order = np.argsort(-arrays["log_psi"].real, kind="stable")
        ordered: dict[str, Any] = {name: rows[order] if len(rows) else rows for name, rows in arrays.items()}
        sector = pl_module.hamiltonian.sector
        path = Path(trainer.default_root_dir) / "determinants.npz"
        temporary = path.with_name(f".{path.stem}.{os.getpid()}.npz")
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(temporary, **ordered, **asdict(sector))
        temporary.replace(path)
        print(f"{len(order)} determinants written to {path}")
