"""Kill, signal, damage and starve short runs at random moments; every one must end with the uninterrupted energies.

    python benchmarks/faults.py [--quick] [--faults N] [--seed S] [--json FILE]

One process imports everything once and forks the runs, so that hundreds of deaths take minutes.
"""

# ruff: noqa: E402 - the number of threads is read when the libraries are imported
from __future__ import annotations

import argparse
import csv
import json
import mmap
import os
import random
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

for variable in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[variable] = "1"  # threads do not survive a fork

import torch
from lightning.pytorch import Callback, Trainer, seed_everything
from rich.console import Console
from rich.table import Table

from nnqs_lightning import signals
from nnqs_lightning.ansatz import TransformerAnsatz
from nnqs_lightning.chem import HubbardChain
from nnqs_lightning.optim import EnergyGradient
from nnqs_lightning.sampling import SystematicSampler
from nnqs_lightning.training import datamodule
from nnqs_lightning.training.checkpoint import RunCheckpoint
from nnqs_lightning.training.checkpoint_store import CheckpointStore
from nnqs_lightning.training.datamodule import MonteCarloDataModule
from nnqs_lightning.training.module import NNQSModule
from nnqs_lightning.training.preemption import Preemption, exit_if_cut_short
from nnqs_lightning.training.resume import resolve_ckpt_path
from nnqs_lightning.training.run_logs import RunCSVLogger
from nnqs_lightning.training.watch import EnergyWatch

STEPS, SAVE_EVERY = 30, 3
PHASES = ("sampling", "local energy", "differentiated pass", "save", "between steps")
READY = "ready"
"""From here on a run answers to signals; before, Python itself is starting."""
TMPFS_BYTES = 6 << 20


class Beacon:
    """How often a run has entered each phase, in memory that it shares with the process that wants to kill it."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, 8 * (1 + len(PHASES)))

    def reset(self) -> None:
        self.memory[:] = bytes(len(self.memory))

    def enter(self, phase: str) -> None:
        struct.pack_into("q", self.memory, 8 * (*PHASES, READY).index(phase), self.count(phase) + 1)

    def count(self, phase: str) -> int:
        return struct.unpack_from("q", self.memory, 8 * (*PHASES, READY).index(phase))[0]


BEACON = Beacon()


def announced(phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, telling the beacon when it begins."""

    def wrapper(*arguments: Any, **options: Any) -> Any:
        BEACON.enter(phase)
        return function(*arguments, **options)

    return wrapper


class BetweenSteps(Callback):
    def on_train_batch_end(self, *_: Any) -> None:
        BEACON.enter("between steps")


def fit(folder: Path) -> Trainer:
    """The run: a four-site Hubbard chain, a checkpoint every few steps, resumed if there is anything to resume."""
    seed_everything(5, verbose=False)
    ansatz = partial(TransformerAnsatz, d_model=8, n_heads=2, n_layers=1)
    module = NNQSModule(
        HubbardChain(n_sites=4, u=2.0),
        ansatz=ansatz,
        direction=EnergyGradient(),
        optimizer=partial(torch.optim.AdamW, lr=1e-2),
        pretraining=None,
    )
    trainer = Trainer(
        accelerator="cpu",
        max_steps=STEPS,
        max_epochs=-1,
        default_root_dir=folder,
        log_every_n_steps=1,
        limit_val_batches=0,
        logger=RunCSVLogger(folder),
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[BetweenSteps(), EnergyWatch(), RunCheckpoint(every_steps=SAVE_EVERY, every_minutes=0), Preemption()],
    )
    data = MonteCarloDataModule(sampler=SystematicSampler(n_walkers=10_000), seed=3)
    trainer.fit(module, data, ckpt_path=resolve_ckpt_path(folder, "auto"))
    return trainer


def energies(folder: Path) -> list[str]:
    with (folder / "metrics.csv").open(newline="") as file:
        return [row["energy/mean"] for row in csv.DictReader(file)]


@dataclass
class Run:
    """One run folder and the process that works on it, if one does."""

    folder: Path
    pid: int = 0

    def start(self) -> None:
        BEACON.reset()
        self.pid = os.fork()
        if self.pid == 0:
            self._work()

    def _work(self) -> None:
        code = 1
        try:
            log = os.open(self.folder.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            for stream in (1, 2):
                os.dup2(log, stream)
            signals.install()
            BEACON.enter(READY)
            exit_if_cut_short(fit(self.folder))
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        except BaseException:  # noqa: BLE001 - a forked process must end here, whatever happened
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)

    def wait(self) -> int:
        """Exit code, negative for the signal that ended it."""
        _, status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(status)


@dataclass
class Tally:
    """What became of the runs that one kind of fault struck."""

    faults: int = 0
    runs: int = 0
    lost: int = 0
    seconds: list[float] = field(default_factory=list)
    """From a signal to the end of the process."""


Strike = Callable[[Run, Tally], None]


def kill_in(phase: str) -> Strike:
    """kill -9 within a phase: its n-th time, a moment after it began."""

    def strike(run: Run, tally: Tally) -> None:
        most = STEPS // SAVE_EVERY if phase == "save" else STEPS
        if wait_for(run, phase, random.randint(1, most)):
            time.sleep(random.uniform(0, 0.004))
            os.kill(run.pid, signal.SIGKILL)
            tally.faults += run.wait() == -signal.SIGKILL
            return
        run.wait()

    return strike


def send(number: signal.Signals) -> Strike:
    """A stop signal at a random moment, set-up included."""

    def strike(run: Run, tally: Tally) -> None:
        wait_for(run, READY, 1)
        wait_for(run, "between steps", random.randint(0, STEPS - 2))
        time.sleep(random.uniform(0, 0.02))
        sent = time.monotonic()
        os.kill(run.pid, number)
        code = run.wait()
        if code == 0:
            return
        tally.faults += 1
        tally.seconds.append(time.monotonic() - sent)
        allowed = {signals.EXIT_CODES[number], 1 if number == signal.SIGINT else 75}
        if code not in allowed:
            raise Lost(f"{number.name} ended the run with {code}")

    return strike


def damage(how: Callable[[Path], None]) -> Strike:
    """kill -9, and then the newest checkpoint is no longer what was written."""

    def strike(run: Run, tally: Tally) -> None:
        if not wait_for(run, "save", random.randint(2, STEPS // SAVE_EVERY)):
            run.wait()
            return
        time.sleep(random.uniform(0, 0.02))
        os.kill(run.pid, signal.SIGKILL)
        run.wait()
        entries = CheckpointStore(run.folder).newest_first()
        if len(entries) > 1:
            how(random.choice([path for path in entries[0][0].iterdir() if path.is_file()]))
            tally.faults += 1

    return strike


def truncate(path: Path) -> None:
    os.truncate(path, random.randrange(path.stat().st_size))


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[random.randrange(len(content))] ^= 1 << random.randrange(8)
    path.write_bytes(content)


def fill_the_disk(run: Run, tally: Tally) -> None:
    """No byte is left for some steps; then there is room again."""
    ballast = run.folder / "ballast"
    if wait_for(run, "between steps", random.randint(1, STEPS - 12)):
        with suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        tally.faults += 1
        wait_for(run, "between steps", BEACON.count("between steps") + random.randint(2, 9))
        ballast.unlink()
    if run.wait() != 0:
        raise Lost("a full disk ended the run")


class Lost(Exception):
    """A run did not end as the uninterrupted one."""


def wait_for(run: Run, phase: str, count: int) -> bool:
    """Whether the run has entered ``phase`` ``count`` times before it ended."""
    while BEACON.count(phase) < count:
        if os.waitid(os.P_PID, run.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return False
        time.sleep(0.0002)
    return True


def batter(strike: Strike, faults: int, folder: Path, expected: list[str], on_tmpfs: bool) -> Tally:
    """Strike runs, resuming each until it is through, until there have been ``faults`` faults."""
    tally = Tally()
    while tally.faults < faults:
        run = Run(folder / f"run-{tally.runs}")
        run.folder.mkdir(parents=True)
        if on_tmpfs:
            mount(run.folder)
        try:
            for _ in range(1 if on_tmpfs else 4):
                if tally.faults < faults:
                    run.start()
                    strike(run, tally)
            run.start()
            code = run.wait()
            if code != 0:
                raise Lost(f"the resumed run ended with {code}")
            if energies(run.folder) != expected:
                raise Lost("the energies differ")
            shutil.rmtree(run.folder, ignore_errors=True)
        except Lost as reason:
            tally.lost += 1
            Console(stderr=True).print(f"[red]{reason}[/]: {run.folder}, {run.folder.with_suffix('.log')}")
        finally:
            tally.runs += 1
            if on_tmpfs:
                subprocess.run(["umount", str(run.folder)], check=True)
    return tally


def mount(folder: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={TMPFS_BYTES}", "tmpfs", str(folder)], check=True)


def can_mount(folder: Path) -> bool:
    folder.mkdir()
    with suppress(OSError, subprocess.CalledProcessError):
        mount(folder)
        subprocess.run(["umount", str(folder)], check=True)
        return True
    return False


def announce_phases() -> None:
    datamodule.SampleStream.draw = announced("sampling", datamodule.SampleStream.draw)
    NNQSModule.on_train_batch_start = announced("local energy", NNQSModule.on_train_batch_start)
    NNQSModule.training_step = announced("differentiated pass", NNQSModule.training_step)
    RunCheckpoint.save = announced("save", RunCheckpoint.save)


def table(tallies: dict[str, Tally]) -> Table:
    shown = Table(title=f"Runs of {STEPS} steps, saved every {SAVE_EVERY}, struck and resumed")
    for heading in ("fault", "faults", "runs", "survived", "lost", "signal to exit, median / max"):
        shown.add_column(heading, justify="left" if heading == "fault" else "right")
    for name, tally in tallies.items():
        times = tally.seconds
        delay = f"{1e3 * statistics.median(times):.0f} / {1e3 * max(times):.0f} ms" if times else ""
        survived = str(tally.runs - tally.lost)
        shown.add_row(name, str(tally.faults), str(tally.runs), survived, str(tally.lost), delay)
    shown.add_section()
    runs, lost = sum(t.runs for t in tallies.values()), sum(t.lost for t in tallies.values())
    faults = sum(t.faults for t in tallies.values())
    shown.add_row("all", str(faults), str(runs), str(runs - lost), str(lost), "", style="bold")
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few faults of each kind, within a minute")
    parser.add_argument("--faults", type=int, default=330, help="faults in all (default: 330)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the moments (default: 1)")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    random.seed(options.seed)
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    kinds: dict[str, Strike] = {f"kill -9 in: {phase}": kill_in(phase) for phase in PHASES}
    kinds.update({number.name: send(number) for number in signals.STOP_SIGNALS})
    kinds.update({"kill -9, file truncated": damage(truncate), "kill -9, bit flipped": damage(flip_a_bit)})
    if can_mount(folder / "tmpfs"):
        kinds["disk full for some steps"] = fill_the_disk
    else:
        Console().print("disk full: left out, a small tmpfs needs root")

    announce_phases()
    started = time.monotonic()
    reference = Run(folder / "uninterrupted")
    fit(folder / "warm-up")  # compiled here once, inherited by every fork
    reference.start()
    if reference.wait() != 0:
        sys.exit(f"the uninterrupted run failed: {reference.folder.with_suffix('.log')}")
    expected = energies(reference.folder)
    each = 2 if options.quick else -(-options.faults // len(kinds))
    tallies = {}
    for name, strike in kinds.items():
        on_tmpfs = strike is fill_the_disk
        tallies[name] = batter(strike, each, folder / name.replace(" ", "-").replace(":", ""), expected, on_tmpfs)
    wall = time.monotonic() - started
    Console().print(table(tallies))
    Console().print(f"final energy {float(expected[-1]):.10f} in every run that survived; {wall:.0f} s")
    if options.json:
        figures = {"faults": {name: asdict(tally) for name, tally in tallies.items()}, "wall_s": wall}
        options.json.write_text(json.dumps({**figures, "final_energy": float(expected[-1])}, indent=1) + "\n")
    if any(tally.lost for tally in tallies.values()):
        sys.exit(f"runs were lost; what is left of them is in {folder}")
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
