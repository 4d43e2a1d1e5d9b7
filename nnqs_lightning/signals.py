"""Stop requests that reach this process as signals; imports nothing heavy, so that it can be installed first.

A handler only takes a note. Whoever trains looks at :func:`requested` at a moment of its own choosing, when all ranks
stand at the same step, and saves then. Saving inside a handler, at whatever line the signal found each rank, deadlocks
the collectives of a checkpoint.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from enum import Enum
from types import FrameType

STOP_SIGNALS = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)
"""A time limit ahead or a preemption (SIGUSR1), a cancelled job or a dying node (SIGTERM), Ctrl-C (SIGINT)."""

EXIT_CODES = {signal.SIGUSR1: 75, signal.SIGTERM: 143, signal.SIGINT: 130}
"""A run cut short never looks like success: 75 (EX_TEMPFAIL) asks for another start, the others are 128 + signal."""


class _Phase(Enum):
    STARTING = "imports and set-up: Ctrl-C interrupts, other signals wait for the first step to end"
    TRAINING = "every signal waits for the step to end"
    RELEASED = "nobody looks at the notes: Ctrl-C and SIGTERM act at once, SIGUSR1 is ignored"


_owner: int | None = None
_phase = _Phase.STARTING
_first: signal.Signals | None = None
_first_time = 0.0


def install() -> None:
    """Take the handlers of :data:`STOP_SIGNALS`; call it in the main thread, before the heavy imports."""
    global _owner
    _owner = os.getpid()
    for number in STOP_SIGNALS:
        signal.signal(number, _note)


def arm() -> None:
    """Training begins: signals are noted only, and the handlers taken back from any library that replaced them."""
    global _phase
    _phase = _Phase.TRAINING
    install()


def release() -> None:
    """Training is over, or will not take place: Ctrl-C and SIGTERM end the process again, SIGUSR1 means nothing."""
    global _phase
    _phase = _Phase.RELEASED
    # Python puts handlers of its own back to the default, death, while it shuts down; "ignore" stays.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)


def requested() -> signal.Signals | None:
    """The first stop signal this process has received, None if there was none."""
    return _first


def seconds_since_request() -> float:
    """Time since the signal that :func:`requested` returns."""
    return time.monotonic() - _first_time


def forget() -> None:
    """Drop the note: the request has been served, or belongs to an earlier run in this process."""
    global _first
    _first = None


def _note(number: int, frame: FrameType | None) -> None:
    global _first, _first_time
    received = signal.Signals(number)
    if os.getpid() != _owner:
        _let_child_be(received)
        return
    if received is signal.SIGINT and (_phase is not _Phase.TRAINING or _first is signal.SIGINT):
        raise KeyboardInterrupt
    if received is signal.SIGTERM and _phase is _Phase.RELEASED:
        sys.exit(EXIT_CODES[received])
    if _first is None:
        _first, _first_time = received, time.monotonic()
    if received is signal.SIGINT:
        # print() is not re-entrant: the interrupted main thread may be inside one.
        os.write(sys.stderr.fileno(), b"\nStopping at the end of this step and saving; Ctrl-C again stops at once.\n")


def _let_child_be(received: signal.Signals) -> None:
    """A forked worker inherits the handlers, but its parent saves and ends it: only SIGTERM means the worker."""
    if received is signal.SIGTERM:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
