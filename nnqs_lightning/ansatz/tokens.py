"""Determinants as sequences of pair tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from nnqs_lightning.fock import pack, unpack


def tokenize(determinants: Tensor, order: Tensor) -> Tensor:
    """Pair tokens t_i = α + 2β of the i-th orbital in decoding order.

    Args:
        determinants: int64 [N, 2, W].
        order: int64 [L], the orbital that is decoded i-th.

    Returns:
        int64 [N, L], each 0 … 3.
    """
    occupation = unpack(determinants, len(order))[:, order]
    return occupation[..., 0] + 2 * occupation[..., 1]


def detokenize(tokens: Tensor, order: Tensor) -> Tensor:
    """Inverse of :func:`tokenize`: int64 [N, L] → int64 [N, 2, W]."""
    occupation = tokens.new_empty((*tokens.shape, 2))
    occupation[:, order] = torch.stack([tokens & 1, tokens >> 1], dim=-1)
    return pack(occupation)


def signs(tokens: Tensor) -> Tensor:
    """Occupations as +1 (occupied) and −1 (empty), α and β in turn: int64 [N, L] → int64 [N, 2L]."""
    return (2 * torch.stack([tokens & 1, tokens >> 1], dim=-1) - 1).flatten(1)


def opened_by_alpha(tokens: Tensor) -> Tensor:
    """Sequences [N, L] with spins flipped where the first singly occupied orbital holds a β electron."""
    alpha, beta = tokens & 1, tokens >> 1
    difference = alpha - beta
    before = difference.abs().cumsum(1) - difference.abs()
    first = torch.where(before == 0, difference, 0).sum(1, keepdim=True)
    return torch.where(first < 0, beta + 2 * alpha, tokens)
