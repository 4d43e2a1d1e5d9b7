"""Fragments of a study small enough to run within a test."""

from __future__ import annotations

from typing import Any

POSITIONAL = "nnqs_lightning.nn.positional"


def scheme(class_path: str, **init_args: Any) -> dict[str, Any]:
    return {"model": {"ansatz": {"init_args": {"positional": {"class_path": class_path, "init_args": init_args}}}}}


def chain(n_atoms: int) -> dict[str, Any]:
    system = {"class_path": "nnqs_lightning.chem.HydrogenChain", "init_args": {"n_atoms": n_atoms}}
    return {"model": {"system": system}}


BASE: dict[str, Any] = {
    "trainer": {"accelerator": "cpu", "max_steps": 2},
    "data": {
        "sampler": {"class_path": "nnqs_lightning.sampling.SumOverStates"},
        "evaluation_sampler": {"class_path": "nnqs_lightning.sampling.SumOverStates"},
    },
    "model": {
        "ansatz": {
            "class_path": "nnqs_lightning.ansatz.TransformerAnsatz",
            "init_args": {"d_model": 8, "n_heads": 2, "n_layers": 1},
        },
        "pretraining": None,
        "local_energy": {"class_path": "nnqs_lightning.vmc.SubspaceLocalEnergy"},
        "validation_energy": {"class_path": "nnqs_lightning.vmc.SubspaceLocalEnergy"},
        "optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.05, "weight_decay": 0}},
    },
}
