"""A rank that stands still is named and the job ended, instead of the other ranks waiting for it for ever."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from nnqs_lightning.errors import UserError

EXIT_CODE = 70
"""EX_SOFTWARE; not 2, so that a batch script starts the run again."""


_COLLECTIVE = re.compile(r"[/\\]torch[/\\](distributed|autograd)[/\\]")
"""Code in which a rank waits for others; the backward pass of DDP and ZeRO is full of collectives."""
_LIBRARY = re.compile(r"[/\\](torch|lightning|deepspeed)[/\\]|contextlib")


class StallWatch(Callback):
    """Ends the job when no step has ended for ``minutes``, and says which rank the others are waiting for.

    A thread of each rank writes a sign of life to the run folder. When time is up, a rank without fresh signs is dead
    or frozen; if all are alive, the one whose main thread is not inside a collective is the one that keeps the others.

    Args:
        minutes: Longest time without a step; 0 watches nothing. Longer than the longest step, set-up of the first
            one included.
    """

    def __init__(self, minutes: float = 30.0) -> None:
        if minutes < 0:
            raise UserError(f"stall.minutes is {minutes}, expected 0 or more")
        self.minutes = minutes
        self._watchdog: _Watchdog | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.minutes:
            self._watchdog = _Watchdog(trainer, 60 * self.minutes)
            self._watchdog.start()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        if self._watchdog:
            self._watchdog.step_ended(trainer.global_step)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._stop()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._stop()

    def _stop(self) -> None:
        if self._watchdog:
            self._watchdog.stop()
            self._watchdog = None


class _Watchdog(threading.Thread):
    def __init__(self, trainer: Trainer, limit: float) -> None:
        super().__init__(name="stall watch", daemon=True)
        self.over = threading.Event()
        self.folder = Path(trainer.default_root_dir) / ".ranks"
        self.rank, self.world_size = trainer.global_rank, trainer.world_size
        self.launcher = trainer.strategy.launcher
        self.limit = limit
        self.interval = min(10.0, limit / 6)
        self.step, self.step_time = trainer.global_step, time.monotonic()
        self.main_thread = threading.main_thread().ident
        self.seen: dict[int, tuple[Any, float]] = {}
        """Last sign of each rank and when it was new, by this rank's clock: clocks of nodes differ."""

    def step_ended(self, step: int) -> None:
        self.step, self.step_time = step, time.monotonic()

    def stop(self) -> None:
        """End the thread and take this rank's sign away."""
        self.over.set()
        self.join()
        with suppress(OSError):
            (self.folder / str(self.rank)).unlink()
            self.folder.rmdir()

    def run(self) -> None:
        beat = 0
        while not self.over.wait(self.interval):
            beat += 1
            self._write_sign(beat)
            self._read_signs()
            if time.monotonic() - self.step_time > self.limit:
                self._end_job()

    def _write_sign(self, beat: int) -> None:
        """Signs of life are a help, not a need: a full disk does not end a run."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            temporary = self.folder / f".{self.rank}"
            temporary.write_text(json.dumps({"beat": beat, "pid": os.getpid(), **self._whereabouts()}))
            temporary.replace(self.folder / str(self.rank))
        except OSError:
            return

    def _whereabouts(self) -> dict[str, Any]:
        frames = _frames(sys._current_frames().get(self.main_thread or 0))
        own = next((f for f in frames if not _LIBRARY.search(f.f_code.co_filename)), None)
        place = f"{Path(own.f_code.co_filename).name}:{own.f_lineno} {own.f_code.co_name}" if own else "unknown"
        waiting = any(_COLLECTIVE.search(f.f_code.co_filename) for f in frames)
        return {"step": self.step, "waiting": waiting, "place": place}

    def _read_signs(self) -> None:
        for rank in range(self.world_size):
            try:
                sign = json.loads((self.folder / str(rank)).read_text())
            except (OSError, ValueError):
                sign = None
            if rank not in self.seen or self.seen[rank][0] != sign:
                self.seen[rank] = sign, time.monotonic()

    def _end_job(self) -> None:
        print(f"error: no step has ended for {self.limit:.0f} s: {self._verdict()}", file=sys.stderr, flush=True)
        kill = getattr(self.launcher, "kill", None)
        if kill is not None and self.world_size > 1:
            kill(9)
        os._exit(EXIT_CODE)

    def _verdict(self) -> str:
        now = time.monotonic()
        silent = [rank for rank, (_, when) in self.seen.items() if now - when > 3 * self.interval]
        if silent:
            return f"rank {_numbers(silent)} gives no sign of life (frozen, or its node is down)"
        signs = {rank: sign for rank, (sign, _) in self.seen.items() if sign}
        places = ", ".join(f"rank {rank} is at {sign['place']}" for rank, sign in signs.items())
        busy = [rank for rank, sign in signs.items() if not sign["waiting"]]
        if busy:
            return f"the others wait for rank {_numbers(busy)} ({places})"
        return f"every rank waits for the others, in a collective that not all of them joined ({places})"


def _frames(frame: FrameType | None) -> list[FrameType]:
    """Innermost first."""
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames


def _numbers(ranks: list[int]) -> str:
    return ", ".join(str(rank) for rank in sorted(ranks))
