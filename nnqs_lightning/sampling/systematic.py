"""Systematic branching: one uniform a node, counts within one walker of their expectation."""

from __future__ import annotations

import torch
from torch import Tensor

from nnqs_lightning.sampling import random
from nnqs_lightning.sampling.random import UNIT_BITS
from nnqs_lightning.sampling.walkers import WalkerSampler

LIMB_BITS = UNIT_BITS // 2
_LIMB = (1 << LIMB_BITS) - 1
_UNIT = 1 << UNIT_BITS


class SystematicSampler(WalkerSampler):
    """Child k of a node with n walkers gets ⌊n c_k + u⌋ − ⌊n c_{k−1} + u⌋, c_k cumulative conditionals, one u.

    The expectation over u is n p_k exactly and a count never strays by a walker or more from it, so siblings are
    anticorrelated and the draw is less noisy than a multinomial one. Arithmetic is in integers of 126 bits: exact at
    any number of walkers below 2^62, with conditionals resolved to 2^-62.

    The conditionals themselves depend on how many prefixes are decoded together, by some ε relative (1e-15 for a
    float64 decoder, 1e-7 for float32). A bound n c + u then moves by at most n ε, so a count changes with at most that
    probability, by one walker where n ε < 1. A level holds all N walkers and each of its nodes three bounds: over L
    levels 3 L N ε counts are expected to differ at most. Sets from different chunks or ranks are therefore identical up
    to about 1e12 walkers in float64 (0.03 counts expected for L = 10, ε = 1e-15); beyond, single counts may differ by
    n ε + 1 walkers, and energies by ε.
    """

    walker_limit = _UNIT - 1

    def split(self, counts: Tensor, log_conditionals: Tensor, hashes: Tensor) -> Tensor:
        """See :meth:`WalkerSampler.split`."""
        cumulative = _fixed_point(log_conditionals).cumsum(1)
        u = random.uniform_bits(hashes)
        bounds = _multiply_add(counts.unsqueeze(1), cumulative, u.unsqueeze(1))
        return bounds.diff(dim=1, prepend=torch.zeros_like(bounds[:, :1]))


def _fixed_point(log_conditionals: Tensor) -> Tensor:
    """Probabilities in units of 2^-62, int64; rows sum to one exactly, the largest entry takes the rounding."""
    units = (log_conditionals.exp() * _UNIT).long()
    rest = _UNIT - units.sum(1, keepdim=True)
    return units.scatter_add(1, units.argmax(1, keepdim=True), rest)


def _multiply_add(n: Tensor, c: Tensor, u: Tensor) -> Tensor:
    """⌊(n c + u) / 2^62⌋ for 0 ≤ n < 2^62, 0 ≤ c ≤ 2^62, 0 ≤ u < 2^62, by 31-bit limbs that never overflow."""
    n1, n0 = n >> LIMB_BITS, n & _LIMB
    c1, c0 = c >> LIMB_BITS, c & _LIMB
    middle = n1 * c0 + n0 * c1
    low = n0 * c0 + ((middle & _LIMB) << LIMB_BITS)
    carry = ((low & (_UNIT - 1)) + u) >> UNIT_BITS
    return n1 * c1 + (middle >> LIMB_BITS) + (low >> UNIT_BITS) + carry
