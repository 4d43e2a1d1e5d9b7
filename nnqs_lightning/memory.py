"""Running out of memory is an answer, not an end: the same rows again, in pieces half as large."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

ERRORS = (MemoryError, RuntimeError)
"""What a shortage may be raised as: the CPU allocator has no type of its own."""

STATISTICS = Path("/proc/self/statm")
"""Sizes of this process in pages, on Linux."""

_shortages = 0


def map_rows(function: Callable[[Tensor], Tensor], rows: Tensor, piece: int) -> list[Tensor]:
    """``function`` of consecutive pieces of ``rows`` [N, ...], of ``piece`` rows or of fewer where memory is short.

    Raises:
        MemoryError, RuntimeError: as ``function`` does with a single row, or for another reason.
    """
    results: list[Tensor] = []
    start = 0
    while start < len(rows):
        part = rows[start : start + piece]
        try:
            results.append(function(part))
            start += len(part)
        except ERRORS as error:
            piece = halved(len(part), error)
    return results


def halved(n_rows: int, error: BaseException) -> int:
    """Half of ``n_rows``, to be tried after ``error``; the memory that the failed attempt held is given back.

    Raises:
        BaseException: ``error`` itself, if it is not a shortage of memory or nothing is left to halve.
    """
    global _shortages
    if n_rows < 2 or not is_shortage(error):
        raise error
    _shortages += 1
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return n_rows // 2


class Heap:
    """Gives back what is free in the heap each time that resident memory has grown by ``slack`` bytes; needs glibc.

    Tensors that live on among others that come and go leave holes, which the C library keeps.
    """

    def __init__(self, slack: int) -> None:
        self.slack = slack
        library = ctypes.CDLL(None) if STATISTICS.exists() else None
        self._trim = getattr(library, "malloc_trim", None)
        self._floor = self._resident()

    def tidy(self) -> None:
        """Give back if memory has grown enough since the last time."""
        if self._trim is not None and self._resident() > self._floor + self.slack:
            self._trim(0)
            self._floor = self._resident()

    def _resident(self) -> int:
        """Bytes in memory; 0 where nothing can be given back."""
        if self._trim is None:
            return 0
        return int(STATISTICS.read_text().split()[1]) * mmap.PAGESIZE


def is_shortage(error: BaseException) -> bool:
    """Whether ``error`` says that memory, of the host or of a device, did not suffice."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in str(error)


def take_shortages() -> int:
    """How often memory was short on this rank since the last call."""
    global _shortages
    count, _shortages = _shortages, 0
    return count
