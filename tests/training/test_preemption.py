"""A stop signal ends training at a step's end, saved, and is never taken for success."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from lightning.pytorch import Callback
from tiny_run import final_weights, fit

from nnqs_lightning import signals
from nnqs_lightning.training.checkpoint import RunCheckpoint
from nnqs_lightning.training.checkpoint_store import CheckpointStore
from nnqs_lightning.training.preemption import MARKER_VARIABLE, cut_short, exit_if_cut_short


class SignalAt(Callback):
    """Sends this process ``numbers`` in the middle of the step after ``step`` steps."""

    def __init__(self, step: int, *numbers: signal.Signals) -> None:
        self.step, self.numbers = step, numbers

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        if trainer.global_step == self.step:
            for number in self.numbers:
                os.kill(os.getpid(), number)


@pytest.fixture(autouse=True)
def own_handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in signals.STOP_SIGNALS}
    signals.forget()
    signals.install()
    yield
    signals.forget()
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGUSR1, 75), (signal.SIGTERM, 143), (signal.SIGINT, 130)],
    ids=lambda value: str(value),
)
def test_a_signal_saves_the_step_it_falls_into_and_ends_with_its_own_code(tmp_path: Path, number, code) -> None:
    trainer = fit(tmp_path / "cut", callbacks=[SignalAt(5, number)])
    assert cut_short(trainer)
    assert trainer.global_step == 6
    newest = CheckpointStore(tmp_path / "cut").newest_first()[0][1]
    assert (newest.step, newest.reason) == (6, f"stopped by {number.name}")
    with pytest.raises(SystemExit) as stop:
        exit_if_cut_short(trainer)
    assert stop.value.code == code
    signals.forget()
    assert final_weights(fit(tmp_path / "cut")) == final_weights(fit(tmp_path / "whole"))


def test_the_marker_asks_for_a_requeue_only_when_steps_are_left(tmp_path: Path, monkeypatch) -> None:
    marker = tmp_path / "requeue"
    monkeypatch.setenv(MARKER_VARIABLE, str(marker))
    trainer = fit(tmp_path / "done", callbacks=[SignalAt(11, signal.SIGUSR1)])
    assert not marker.exists()
    assert not cut_short(trainer)
    exit_if_cut_short(trainer)
    signals.forget()
    fit(tmp_path / "cut", callbacks=[SignalAt(5, signal.SIGUSR1)])
    assert marker.read_text() == "SIGUSR1 at step 6\n"


def test_lightnings_minimum_of_steps_does_not_hold_a_stop_up(tmp_path: Path) -> None:
    assert fit(tmp_path, callbacks=[SignalAt(5, signal.SIGUSR1)], min_steps=10).global_step == 6


def test_a_stop_that_could_not_be_saved_says_so(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(RunCheckpoint, "save", lambda self, trainer, reason: None)
    fit(tmp_path, callbacks=[SignalAt(5, signal.SIGUSR1)])
    assert "stopped by SIGUSR1, NOT saved" in capsys.readouterr().err


def test_ctrl_c_does_not_ask_for_a_requeue(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv(MARKER_VARIABLE, str(tmp_path / "requeue"))
    fit(tmp_path / "cut", callbacks=[SignalAt(5, signal.SIGINT)])
    assert not (tmp_path / "requeue").exists()


def test_a_second_ctrl_c_stops_at_once(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as stop:
        fit(tmp_path, callbacks=[SignalAt(5, signal.SIGINT, signal.SIGINT)])
    assert stop.value.code == 1
    assert CheckpointStore(tmp_path).newest_first()[0][1].step == 4


def test_a_signal_before_training_stops_after_the_first_step(tmp_path: Path) -> None:
    os.kill(os.getpid(), signal.SIGUSR1)
    assert fit(tmp_path).global_step == 1


def test_a_forked_worker_leaves_the_saving_to_its_parent() -> None:
    for number, outcome in ((signal.SIGUSR1, 0), (signal.SIGINT, 0), (signal.SIGTERM, signal.SIGTERM)):
        child = os.fork()
        if child == 0:
            os.kill(os.getpid(), number)
            os._exit(0 if signals.requested() is None else 1)
        assert os.waitpid(child, 0)[1] == outcome


def test_handlers_stand_before_the_heavy_imports() -> None:
    code = (
        "import sys; from nnqs_lightning import signals; sys.exit('torch' in sys.modules or 'lightning' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_after_training_sigterm_ends_the_process_and_not_as_success(tmp_path: Path) -> None:
    fit(tmp_path)
    with pytest.raises(SystemExit) as stop:
        os.kill(os.getpid(), signal.SIGTERM)
    assert stop.value.code == 143


def test_a_warning_during_shutdown_does_not_turn_success_into_failure() -> None:
    code = (
        "import atexit, os, signal; from nnqs_lightning import signals; signals.install();"
        "signals.arm(); signals.release();"
        "type('Late', (), {'__del__': lambda self: os.kill(os.getpid(), signal.SIGUSR1)})()"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_command_that_does_not_train_ends_at_once(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; sys.argv = ['nnqs_lightning', 'validate']; import nnqs_lightning.__main__ as entry;"
        "entry.import_module = lambda name: os.kill(os.getpid(), signal.SIGTERM); entry.main()"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 143
