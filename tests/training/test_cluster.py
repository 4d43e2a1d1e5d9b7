"""Ranks that SLURM started are compared with those the trainer wants, before any of them waits for another."""

from __future__ import annotations

import os

import pytest
from lightning.fabric.plugins.environments import LightningEnvironment

from nnqs_lightning.errors import UserError
from nnqs_lightning.training.cluster import SrunEnvironment, cluster_environment


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A rank of a job of two nodes with two tasks each, named as an interactive shell would be."""
    for name in [name for name in os.environ if name.startswith(("SLURM_", "MASTER_"))]:
        monkeypatch.delenv(name)
    settings = {"JOB_ID": 71234, "JOB_NAME": "bash", "NTASKS": 4, "NNODES": 2, "STEP_ID": 0, "PROCID": 3, "LOCALID": 1}
    for name, value in settings.items():
        monkeypatch.setenv(f"SLURM_{name}", str(value))
    return monkeypatch


def test_ranks_come_from_srun_whatever_the_name_of_the_job(slurm: pytest.MonkeyPatch) -> None:
    environment = cluster_environment(2, 2)
    assert isinstance(environment, SrunEnvironment)
    assert (environment.global_rank(), environment.local_rank(), environment.world_size()) == (3, 1, 4)
    assert environment.main_port == 15000 + 1234
    assert not environment.auto_requeue


@pytest.mark.parametrize("devices", [2, "2", [0, 1], "0,1", "auto", -1])
def test_layouts_that_agree_pass(slurm: pytest.MonkeyPatch, devices) -> None:
    assert cluster_environment(devices, 2) is not None


def test_layouts_that_differ_are_refused_with_both_numbers(slurm: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"trainer\.devices is 1 on 2 node\(s\), srun has started 4 tasks"):
        cluster_environment(1, 2)
    with pytest.raises(UserError, match=r"trainer\.num_nodes is 1, the SLURM job has 2 nodes"):
        cluster_environment(4, 1)


def test_a_job_of_several_tasks_without_srun_is_refused(slurm: pytest.MonkeyPatch) -> None:
    slurm.delenv("SLURM_STEP_ID")
    with pytest.raises(UserError, match="put srun before python"):
        cluster_environment(2, 2)


def test_a_batch_job_of_one_task_may_do_without_srun(slurm: pytest.MonkeyPatch) -> None:
    slurm.setenv("SLURM_STEP_ID", "4294967291")
    slurm.setenv("SLURM_NTASKS", "1")
    assert isinstance(cluster_environment(2, 1), LightningEnvironment)


def test_outside_slurm_nothing_changes(slurm: pytest.MonkeyPatch) -> None:
    slurm.delenv("SLURM_JOB_ID")
    assert cluster_environment("auto", 1) is None


def test_an_address_that_does_not_resolve_is_named(slurm: pytest.MonkeyPatch) -> None:
    slurm.setenv("MASTER_ADDR", "no-such-node.invalid")
    with pytest.raises(UserError, match=r"MASTER_ADDR is no-such-node\.invalid"):
        _ = SrunEnvironment().main_address
