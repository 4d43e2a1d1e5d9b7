"""How kernels are compiled and spread over threads. Importing it imports numba."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numba
import torch
from llvmlite import ir
from numba import types
from numba.extending import intrinsic


def jit(function: Callable[..., Any]) -> Any:
    """Compile once, release the GIL, cache on disk: beside the source, else in the user's cache folder, else not."""
    try:
        return numba.njit(function, nogil=True, cache=True, error_model="numpy")
    except RuntimeError:  # numba found no writable place for its cache
        return numba.njit(function, nogil=True, error_model="numpy")


def map_rows(kernel: Callable[..., Any], n_rows: int, *arguments: Any) -> list[Any]:
    """Call ``kernel(start, stop, *arguments)`` over blocks of rows, on as many threads as torch uses.

    That number comes from OMP_NUM_THREADS, or from ``torch.set_num_threads``. A kernel may write only the rows of its
    block, so results do not depend on the number of threads. What the calls return comes back in the order of rows.
    """
    threads = min(torch.get_num_threads(), n_rows)
    if threads <= 1:
        return [kernel(0, n_rows, *arguments)]
    # More blocks than threads: rows differ in cost.
    n_blocks = min(n_rows, 8 * threads)
    bounds = [n_rows * block // n_blocks for block in range(n_blocks + 1)]
    with ThreadPoolExecutor(threads) as pool:
        blocks = [pool.submit(kernel, start, stop, *arguments) for start, stop in pairwise(bounds)]
        return [block.result() for block in blocks]


def _popcount(typing_context: Any, word: Any) -> Any:
    """Number of set bits of a uint64, as int64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.int64(types.uint64), generate


def _lowest_bit(typing_context: Any, word: Any) -> Any:
    """Index of the lowest set bit of a non-zero uint64, as int64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), generate


# Inside kernels these take one argument, the word.
popcount: Any = intrinsic(_popcount)
lowest_bit: Any = intrinsic(_lowest_bit)
