"""Time and memory of one job."""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def cpu_seconds(job: Callable[[], Any], repeats: int) -> float:
    """Least CPU time of ``job``, compiled before."""
    job()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        job()
        times.append(time.process_time() - start)
    return min(times)


def peak_megabytes(job: Callable[[], Any]) -> float:
    """How far ``job`` raises the resident memory of the process at most; NaN where the system does not tell."""
    try:
        # What was freed before is given back, so that it counts again.
        ctypes.CDLL(None).malloc_trim(0)
        before = _status("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")
        job()
        return round((_status("VmHWM") - before) / 1024, 1)
    except (OSError, AttributeError):
        return math.nan


def _status(key: str) -> int:
    """A figure of this process in kibibytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))
