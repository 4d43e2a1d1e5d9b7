"""Ranks and addresses under SLURM, checked before anything can hang."""

from __future__ import annotations

import os
import socket
from typing import Any

from lightning.fabric.plugins.environments import ClusterEnvironment, LightningEnvironment, SLURMEnvironment

from nnqs_lightning.errors import UserError

_FIRST_RESERVED_STEP = 0xFFFFFFF0
"""Step ids from here on are SLURM's own: the batch script, an interactive shell."""


class SrunEnvironment(SLURMEnvironment):
    """What srun says about ranks, under any job name. The batch script requeues, Lightning does not.

    Lightning's own requeue saves inside the signal handler, where ranks stand at different steps.
    """

    def __init__(self) -> None:
        super().__init__(auto_requeue=False)

    @staticmethod
    def _validate_srun_variables() -> None:
        """:func:`check_layout` compares the tasks themselves, so ``--ntasks`` alone is good enough."""

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        check_layout(num_devices, num_nodes)

    @property
    def main_address(self) -> str:
        address = super().main_address
        try:
            socket.getaddrinfo(address, None)
        except socket.gaierror:
            raise UserError(
                f"MASTER_ADDR is {address}, which {socket.gethostname()} cannot resolve: set MASTER_ADDR in "
                "slurm/env.sh to a name or an address of the job's first node"
            ) from None
        return address


def cluster_environment(devices: Any, num_nodes: int) -> ClusterEnvironment | None:
    """The environment to hand to the trainer, None outside SLURM.

    Args:
        devices: ``trainer.devices``.
        num_nodes: ``trainer.num_nodes``.

    Raises:
        UserError: if a job of several tasks was started without srun, or its layout is not the trainer's.
    """
    if "SLURM_JOB_ID" not in os.environ:
        return None
    tasks = int(os.environ.get("SLURM_NTASKS", "1"))
    if int(os.environ.get("SLURM_STEP_ID", _FIRST_RESERVED_STEP)) < _FIRST_RESERVED_STEP:
        check_layout(devices, num_nodes)
        return SrunEnvironment()
    if tasks > 1:
        raise UserError(
            f"started without srun in a SLURM job of {tasks} tasks, where it would wait for the others for ever: "
            "put srun before python, as slurm/fit.sbatch does"
        )
    return LightningEnvironment()


def check_layout(devices: Any, num_nodes: int) -> None:
    """Compare the trainer's ranks with the tasks that srun has started.

    Raises:
        UserError: if they differ.
    """
    nodes, tasks = int(os.environ["SLURM_NNODES"]), int(os.environ["SLURM_NTASKS"])
    if num_nodes != nodes:
        raise UserError(f"trainer.num_nodes is {num_nodes}, the SLURM job has {nodes} nodes: make them equal")
    per_node = _device_count(devices)
    if per_node is not None and per_node * nodes != tasks:
        raise UserError(
            f"trainer.devices is {devices} on {nodes} node(s), srun has started {tasks} tasks: set trainer.devices to "
            f"{tasks // nodes}, or --ntasks-per-node to {per_node}"
        )


def _device_count(devices: Any) -> int | None:
    """Ranks on a node that ``trainer.devices`` asks for, None where only the hardware knows (auto, -1)."""
    if isinstance(devices, (list, tuple)):
        return len(devices)
    text = str(devices)
    if "," in text:
        return len([part for part in text.split(",") if part.strip()])
    return int(text) if text.isdigit() and int(text) > 0 else None
