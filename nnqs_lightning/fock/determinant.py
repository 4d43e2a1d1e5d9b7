"""Determinants packed into 64-bit words.

A determinant over ``n_orb`` spatial orbitals is an int64 row [2, W]: the words of its α string, then those of its
β string, W = ⌈n_orb / 64⌉. Bit ``p % 64`` of word ``p // 64`` is the occupation of orbital p.

Phase convention: |D⟩ = Π_{p∈α} a†_{pα} Π_{q∈β} a†_{qβ} |vac⟩ with orbitals rising from left to right, all α before
all β, which is PySCF's. The interleaved list [α0, β0, α1, β1, …] names the same determinant; it never enters a sign.
"""

from __future__ import annotations

import torch
from torch import Tensor

WORD_BITS = 64


def n_words(n_orb: int) -> int:
    """Number of 64-bit words that hold one spin string of ``n_orb`` orbitals."""
    return -(-n_orb // WORD_BITS)


def pack(occupation: Tensor) -> Tensor:
    """Pack occupations into words.

    Args:
        occupation: [N, n_orb, 2], 0/1 or bool; the last axis is (α, β).

    Returns:
        int64 determinants [N, 2, W].
    """
    n, n_orb, _ = occupation.shape
    width = n_words(n_orb) * WORD_BITS
    bits = torch.zeros((n, 2, width), dtype=torch.int64, device=occupation.device)
    bits[:, :, :n_orb] = occupation.transpose(1, 2).to(torch.int64)
    shifts = torch.arange(WORD_BITS, device=occupation.device)
    # The bits are disjoint, so the wrapping int64 sum is a bitwise or, bit 63 (the sign) included.
    return (bits.unflatten(2, (-1, WORD_BITS)) << shifts).sum(-1)


def unpack(determinants: Tensor, n_orb: int) -> Tensor:
    """Inverse of :func:`pack`: int64 [N, 2, W] → int64 occupations [N, n_orb, 2]."""
    shifts = torch.arange(WORD_BITS, device=determinants.device)
    bits = (determinants.unsqueeze(-1) >> shifts) & 1
    return bits.flatten(2)[:, :, :n_orb].transpose(1, 2).contiguous()


def popcount(words: Tensor) -> Tensor:
    """Number of set bits of each int64 word (the sign bit counts)."""
    x = words - ((words >> 1) & 0x5555555555555555)
    x = (x & 0x3333333333333333) + ((x >> 2) & 0x3333333333333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F0F0F0F0F
    return ((x * 0x0101010101010101) >> 56) & 0x7F
