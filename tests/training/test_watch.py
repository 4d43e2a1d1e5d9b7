"""A run that goes astray comes back a bounded number of times; a run that stands still says who is to blame."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
import small
from tiny_run import TinyModule, final_weights, fit

from nnqs_lightning.errors import UserError
from nnqs_lightning.training.checkpoint import RunCheckpoint
from nnqs_lightning.training.stall import StallWatch
from nnqs_lightning.training.watch import EnergyWatch
from nnqs_lightning.vmc import LocalEnergies, LocalEnergy, SubspaceLocalEnergy


def spoilt(*steps: int, value: float = math.nan) -> TinyModule:
    return TinyModule(12, spoil=lambda step, energy: value if step in steps else energy)


class Recorder(TinyModule):
    """Keeps the parameters and learning rate with which each step began."""

    def on_train_start(self) -> None:
        self.begun: dict[int, tuple[list[float], float]] = {}

    def on_train_batch_start(self, batch, batch_idx) -> None:
        rate = self.trainer.optimizers[0].param_groups[0]["lr"]
        self.begun[self.trainer.global_step] = self.weights.detach().tolist(), rate


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e3])
def test_parameters_and_schedule_go_back_and_the_step_shrinks(tmp_path: Path, value: float) -> None:
    module = Recorder(12, spoil=lambda step, energy: value if step == 6 else energy)
    with pytest.warns(UserWarning, match=r"step 7: the energy .* Back to step-00000004 .* \(1 of 3 times\)"):
        trainer = fit(tmp_path, module=module, callbacks=[EnergyWatch()])
    assert module.begun[7][0] == module.begun[4][0]
    assert module.begun[7][1] == pytest.approx(0.5 * module.begun[4][1])
    assert module.begun[8][1] == pytest.approx(0.99 * module.begun[7][1])
    assert trainer.global_step == 12


def test_a_parameter_that_is_not_finite_is_noticed_before_the_next_draw(tmp_path: Path) -> None:
    class Poisoned(Recorder):
        def on_before_zero_grad(self, optimizer) -> None:
            if self.trainer.global_step == 6:
                self.weights.data[3] = math.nan

    with pytest.warns(UserWarning, match="a parameter is not finite"):
        trainer = fit(tmp_path, module=Poisoned(12), callbacks=[EnergyWatch()])
    assert all(math.isfinite(weight) for weight in final_weights(trainer))


def test_without_progress_it_goes_further_back_each_time(tmp_path: Path) -> None:
    module = Recorder(12, spoil=lambda step, energy: math.nan if step in (9, 10) else energy)
    with pytest.warns(UserWarning, match="Back to step"):
        fit(tmp_path, module=module, callbacks=[EnergyWatch()])
    assert module.begun[10][0] == module.begun[8][0]
    assert module.begun[11][0] == module.begun[4][0]
    assert module.begun[11][1] == pytest.approx(0.25 * module.begun[4][1])


def test_it_gives_up_after_the_given_number_of_times(tmp_path: Path) -> None:
    module = spoilt(5, 6, 7, 8)
    with pytest.warns(UserWarning, match="2 of 2"), pytest.raises(UserError, match=r"after 2 step.*lr"):
        fit(tmp_path, module=module, callbacks=[EnergyWatch(max_step_backs=2)], keep=10)


def test_a_resumed_run_remembers_how_often_it_stepped_back(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="1 of 3"):
        fit(tmp_path, steps=8, module=spoilt(2), callbacks=[EnergyWatch()])
    watch = EnergyWatch()
    fit(tmp_path, steps=12, callbacks=[watch])
    assert watch.step_backs == 1


def test_a_calm_run_is_left_alone(tmp_path: Path) -> None:
    watched = fit(tmp_path / "watched", callbacks=[EnergyWatch(), StallWatch()])
    assert not (tmp_path / "watched/.ranks").exists()
    assert final_weights(watched) == final_weights(fit(tmp_path / "alone"))


STALLED_FIT = textwrap.dedent(
    """
    import sys, time
    sys.path.insert(0, {folder!r})
    from pathlib import Path
    from tiny_run import TinyModule, fit
    from nnqs_lightning.training.checkpoint import RunCheckpoint
    from nnqs_lightning.training.stall import StallWatch

    class Stuck(TinyModule):
        def training_step(self, batch, batch_idx):
            if self.trainer.global_rank == {rank} and self.trainer.global_step == 3:
                time.sleep(600)
            return super().training_step(batch, batch_idx)

    fit(Path({run_dir!r}), module=Stuck(12), callbacks=[StallWatch(minutes={minutes})], logs=False, strategy="ddp",
        devices=2)
    """
)


@pytest.mark.slow
def test_the_rank_that_keeps_the_others_waiting_is_named(tmp_path: Path) -> None:
    script = tmp_path / "stalled.py"
    script.write_text(
        STALLED_FIT.format(folder=str(Path(__file__).parent), run_dir=str(tmp_path / "run"), rank=1, minutes=0.05)
    )
    run = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False, env=quiet_environment()
    )
    assert run.returncode not in (0, 2)
    assert "no step has ended for 3 s: the others wait for rank 1 (" in run.stderr
    assert re.search(r"rank 1 is at stalled\.py:\d+ training_step", run.stderr)


def quiet_environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


class SometimesNaN(LocalEnergy):
    """Local energies that are not numbers at the draws of the given steps."""

    def __init__(self, *steps: int) -> None:
        self.steps, self.exact = steps, SubspaceLocalEnergy()

    def evaluate(self, hamiltonian, ansatz, sample) -> LocalEnergies:
        energies = self.exact.evaluate(hamiltonian, ansatz, sample)
        return replace(energies, values=energies.values * math.nan) if sample.step in self.steps else energies


def test_nan_local_energies_of_a_wave_function_are_survived(tmp_path: Path) -> None:
    callbacks = [EnergyWatch(), RunCheckpoint(every_steps=2)]
    trainer = small.trainer(tmp_path, 8, callbacks=callbacks, enable_checkpointing=True)
    module = small.module(local_energy=SometimesNaN(5))
    with pytest.warns(UserWarning, match="step 6: the energy is nan. Back to step-00000004"):
        trainer.fit(module, small.data())
    assert trainer.global_step == 8
    assert math.isfinite(trainer.callback_metrics["energy/mean"])


def test_without_a_checkpoint_callback_nan_ends_the_run_with_what_to_change(tmp_path: Path) -> None:
    trainer = small.trainer(tmp_path, 8)
    with pytest.raises(UserError, match=r"step 5: .*NaN.*lr"):
        trainer.fit(small.module(local_energy=SometimesNaN(5)), small.data())
