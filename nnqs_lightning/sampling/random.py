"""Counter-based randomness: a random number is a hash of where it is used, not of what was drawn before.

The key of a draw is a hash of (seed, step, stream); each token extends it to the hash of a prefix, and every uniform is
a hash of (prefix hash, index). A draw therefore depends on no visiting order, chunk size, number of ranks or generator
state. The mixer is the 64-bit finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014; constants of Stafford's
"Mix13"), a bijection in which every input bit flips every output bit with probability ½ to within 1e-3.
"""

from __future__ import annotations

import torch
from torch import Tensor

UNIT_BITS = 62
"""Fixed-point unit of :func:`uniform_bits`: 2^62 stands for one."""

TOKENS = 4
GAMMA = 0x9E3779B97F4A7C15
MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_MASK = (1 << 64) - 1


def draw_key(seed: int, step: int, stream: int) -> int:
    """Hash of the empty prefix of the draw (seed, step, stream): an int64."""
    key = 0
    for part in (seed, step, stream):
        key = _mix_int((key + GAMMA + _mix_int(part & _MASK)) & _MASK)
    return _signed(key)


def extend(hashes: Tensor, tokens: Tensor) -> Tensor:
    """Hashes of prefixes, int64 [M], once ``tokens`` (int64 [M]) are appended."""
    return _mix(hashes + (tokens + 1) * _signed(GAMMA))


def uniform_bits(hashes: Tensor, index: int = 0) -> Tensor:
    """The ``index``-th uniform of each node in fixed point, int64 in [0, 2^62)."""
    return _mix(hashes + _signed((TOKENS + 1 + index) * GAMMA)) & ((1 << UNIT_BITS) - 1)


def uniform(hashes: Tensor, index: int = 0) -> Tensor:
    """The ``index``-th uniform of each node, float64 in the open interval (0, 1), 52 bits."""
    return ((uniform_bits(hashes, index) >> (UNIT_BITS - 52)).double() + 0.5) * 2.0**-52


def _mix(x: Tensor) -> Tensor:
    # int64 products wrap, which is the arithmetic modulo 2^64 that the mixer needs; its shifts are logical.
    x = (x ^ _shift(x, 30)) * _signed(MULTIPLIERS[0])
    x = (x ^ _shift(x, 27)) * _signed(MULTIPLIERS[1])
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    return torch.bitwise_and(x >> bits, (1 << (64 - bits)) - 1)


def _mix_int(x: int) -> int:
    x = ((x ^ (x >> 30)) * MULTIPLIERS[0]) & _MASK
    x = ((x ^ (x >> 27)) * MULTIPLIERS[1]) & _MASK
    return x ^ (x >> 31)


def _signed(x: int) -> int:
    x &= _MASK
    return x - (1 << 64) if x >> 63 else x
