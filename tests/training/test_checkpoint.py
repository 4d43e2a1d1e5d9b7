"""Checkpoints are whole or absent, the rotation keeps what it promises, a resumed run is the uninterrupted one."""

from __future__ import annotations

import csv
import errno
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tiny_run import TinyModule, final_weights, fit

from nnqs_lightning.errors import UserError
from nnqs_lightning.training.checkpoint_store import (
    MANIFEST,
    STATE,
    CheckpointStore,
    DamagedCheckpoint,
    Manifest,
    verify,
)
from nnqs_lightning.training.resume import resolve_ckpt_path
from nnqs_lightning.training.run_logs import RunCSVLogger


class KillAt(Callback):
    """kill -9 of this very process when ``step`` steps are done and saved, before Lightning has logged the last one."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        if trainer.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def fit_and_die(run_dir: Path, step: int, **options) -> None:
    child = os.fork()
    if child == 0:
        fit(run_dir, callbacks=[KillAt(step)], **options)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL


def learning_rate(trainer: Trainer) -> list[float]:
    return trainer.lr_scheduler_configs[0].scheduler.get_last_lr()


def steps_kept(run_dir: Path) -> list[int]:
    return [manifest.step for _, manifest in CheckpointStore(run_dir).newest_first()]


def tensorboard_steps(run_dir: Path) -> list[int]:
    events = EventAccumulator(str(run_dir))
    events.Reload()
    return [event.step for event in events.Scalars("energy/mean")]


@pytest.mark.parametrize("death", [3, 8, 9, 11])
def test_a_killed_and_resumed_run_equals_the_uninterrupted_one_bit_for_bit(tmp_path: Path, death: int) -> None:
    whole = fit(tmp_path / "whole")
    fit_and_die(tmp_path / "killed", death)
    resumed = fit(tmp_path / "killed")
    assert final_weights(resumed) == final_weights(whole)
    assert learning_rate(resumed) == learning_rate(whole)
    assert (tmp_path / "killed/metrics.csv").read_text() == (tmp_path / "whole/metrics.csv").read_text()


def test_tensorboard_shows_each_step_once(tmp_path: Path) -> None:
    fit_and_die(tmp_path, 6)
    time.sleep(1)  # TensorBoard sorts event files by the second in their names.
    fit(tmp_path)
    assert tensorboard_steps(tmp_path) == list(range(12))


def test_a_finished_run_continues_when_it_is_given_more_steps(tmp_path: Path) -> None:
    fit(tmp_path / "more", steps=8)
    assert final_weights(fit(tmp_path / "more", steps=12)) == final_weights(fit(tmp_path / "whole", steps=12))


def test_saves_by_steps_at_the_end_and_keeps_the_newest(tmp_path: Path) -> None:
    fit(tmp_path, steps=11, every_steps=3, keep=2)
    assert steps_kept(tmp_path) == [11, 9]


def test_saves_by_minutes(tmp_path: Path) -> None:
    fit(tmp_path / "always", steps=5, every_steps=0, every_minutes=1e-9, keep=10)
    assert steps_kept(tmp_path / "always") == [5, 4, 3, 2, 1, 0]
    fit(tmp_path / "never", steps=5, every_steps=0, every_minutes=60.0, keep=10)
    assert steps_kept(tmp_path / "never") == [5, 0]


def test_the_lowest_energy_is_kept_apart_from_the_rotation(tmp_path: Path) -> None:
    module = TinyModule(12, spoil=lambda step, energy: -7.0 if step == 3 else energy)
    fit(tmp_path, every_steps=2, keep=1, module=module)
    store = CheckpointStore(tmp_path)
    assert steps_kept(tmp_path) == [12]
    assert [(manifest.step, manifest.energy) for _, manifest in store.best()] == [(4, -7.0)]
    assert resolve_ckpt_path(tmp_path, "best") == str(store.folder / "best/step-00000004" / STATE)


def test_a_step_without_a_finite_energy_is_not_saved(tmp_path: Path) -> None:
    fit(tmp_path, module=TinyModule(12, spoil=lambda step, energy: float("nan") if step == 7 else energy))
    assert 8 not in steps_kept(tmp_path)


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize("damage", [flip_a_bit, truncate, Path.unlink])
@pytest.mark.parametrize("victim", [STATE, MANIFEST])
def test_a_damaged_checkpoint_is_passed_over_with_a_warning(tmp_path: Path, damage, victim: str) -> None:
    fit(tmp_path, steps=8)
    damage(CheckpointStore(tmp_path).folder / "step-00000008" / victim)
    with pytest.warns(UserWarning, match="step-00000008"):
        path = resolve_ckpt_path(tmp_path, "auto")
    assert path == str(CheckpointStore(tmp_path).folder / "step-00000004" / STATE)
    with pytest.raises(UserError):
        resolve_ckpt_path(tmp_path, str(CheckpointStore(tmp_path).folder / "step-00000008"))


def test_no_flipped_bit_of_a_manifest_goes_unnoticed(tmp_path: Path) -> None:
    fit(tmp_path, steps=4)
    newest = CheckpointStore(tmp_path).folder / "step-00000004"
    content = (newest / MANIFEST).read_bytes()
    meaning = Manifest.read(newest)
    for position in range(len(content)):
        flipped = bytearray(content)
        flipped[position] ^= 1 << position % 8
        (newest / MANIFEST).write_bytes(flipped)
        try:
            assert Manifest.read(newest) == meaning, "only blanks may differ"
        except DamagedCheckpoint:
            continue


def test_what_a_kill_leaves_half_written_is_never_a_checkpoint(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    (store.begin(40) / STATE).write_bytes(b"half")
    assert store.newest_first() == []
    assert resolve_ckpt_path(tmp_path, "auto") is None
    assert list(store.begin(41).parent.iterdir()) == [store.folder / ".writing-00000041"]


def figures(step: int) -> dict:
    return {
        "step": step,
        "energy": None,
        "reason": "test",
        "save_seconds": 0.0,
        "step_seconds": 0.0,
        "world_size": 2,
        "strategy": "DeepSpeedStrategy",
        "versions": {},
    }


def test_a_folder_of_shards_is_one_checkpoint(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    writing = store.begin(5)
    shards = writing / STATE / "checkpoint"
    shards.mkdir(parents=True)
    for rank in range(2):
        (shards / f"shard_{rank}.pt").write_bytes(bytes([rank]) * 100)
    published = store.publish(writing, **figures(5))
    assert set(verify(published).files) == {f"{STATE}/checkpoint/shard_{rank}.pt" for rank in range(2)}
    (published / STATE / "checkpoint/shard_1.pt").unlink()
    with pytest.raises(DamagedCheckpoint, match=r"shard_1\.pt is missing"):
        verify(published)


def test_a_step_saved_again_takes_a_new_name_and_counts_as_newer(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    names = []
    for step in (5, 9, 5):
        writing = store.begin(step)
        (writing / STATE).write_bytes(b"state")
        names.append(store.publish(writing, **figures(step)).name)
    assert names == ["step-00000005", "step-00000009", "step-00000005-v2"]
    assert [path.name for path, _ in store.newest_first()] == names[::-1]


def refuse(*arguments: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_told_and_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as full:
        full.setattr(Path, "write_bytes", refuse)
        with pytest.warns(UserWarning, match="could not be saved .*No space left"):
            trainer = fit(tmp_path / "full")
    assert trainer.global_step == 12
    assert final_weights(trainer) == final_weights(fit(tmp_path / "whole"))
    assert list((tmp_path / "full/checkpoints").iterdir()) == []


def test_too_little_space_for_another_one_is_noticed_before_writing(tmp_path: Path, monkeypatch) -> None:
    fit(tmp_path, steps=4)
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 10})())
    with pytest.raises(OSError, match="10 bytes free"):
        CheckpointStore(tmp_path).begin(8)


def test_requests_mean_what_they_say(tmp_path: Path) -> None:
    assert resolve_ckpt_path(tmp_path, None) is None
    assert resolve_ckpt_path(tmp_path, "auto") is None
    with pytest.raises(UserError, match="no checkpoint"):
        resolve_ckpt_path(tmp_path, "last")
    fit(tmp_path, steps=8)
    newest = CheckpointStore(tmp_path).folder / "step-00000008"
    for request in ("auto", "last", str(newest), str(newest / STATE), str(tmp_path)):
        assert resolve_ckpt_path(tmp_path, request) == str(newest / STATE)
    with pytest.raises(UserError, match=r"reached step 8.*--trainer\.default_root_dir"):
        resolve_ckpt_path(tmp_path, None)
    with pytest.raises(UserError, match="does not exist"):
        resolve_ckpt_path(tmp_path, str(tmp_path / "elsewhere"))


def test_all_damaged_is_an_error_not_a_new_run(tmp_path: Path) -> None:
    fit(tmp_path, steps=4)
    for state in (tmp_path / "checkpoints").rglob(STATE):
        truncate(state)
    with pytest.warns(UserWarning, match="bytes"), pytest.raises(UserError, match="only damaged checkpoints"):
        resolve_ckpt_path(tmp_path, "auto")


def test_a_format_from_the_future_is_refused(tmp_path: Path) -> None:
    fit(tmp_path, steps=4)
    newest = CheckpointStore(tmp_path).folder / "step-00000004"
    replace(Manifest.read(newest), format=99).write(newest)
    with pytest.raises(UserError, match="upgrade nnqs_lightning"):
        resolve_ckpt_path(tmp_path, "auto")


def test_format_1_keeps_loading(tmp_path: Path) -> None:
    """The fixture was written when format 1 was new; it holds step 8 of 12."""
    fixture = Path(__file__).parent / "checkpoint_format_1"
    path = resolve_ckpt_path(tmp_path, str(fixture))
    assert path == str(fixture / STATE)
    module = TinyModule(12)
    trainer = fit(tmp_path / "continued", request=str(fixture), module=module)
    assert trainer.global_step == 12
    torch.testing.assert_close(module.weights, fit(tmp_path / "whole").lightning_module.weights, rtol=1e-5, atol=1e-6)


def test_rows_wait_in_memory_while_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logger = RunCSVLogger(tmp_path)
    logger.log_metrics({"a": 1.0}, step=0)
    with monkeypatch.context() as full:
        full.setattr(csv.DictWriter, "writerows", refuse)
        with pytest.warns(UserWarning, match=r"its rows wait in memory"):
            logger.save()
        assert list(tmp_path.iterdir()) == []
    logger.save()
    for step, row in enumerate([{"a": 2.0}, {"b": 3.0}], start=1):
        logger.log_metrics(row, step)
        with monkeypatch.context() as full:
            full.setattr(csv.DictWriter, "writerows", refuse)
            with pytest.warns(UserWarning, match=r"its rows wait in memory"):
                logger.save()
        logger.save()
    assert (tmp_path / "metrics.csv").read_text().split() == ["a,b,step", "1.0,,0", "2.0,,1", ",3.0,2"]
