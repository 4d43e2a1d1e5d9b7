"""Spin flip: every α electron becomes β and every β electron α.

It maps a state of total spin S with as many α as β electrons to (−1)^S times itself. For the determinants of
:mod:`nnqs_lightning.fock.determinant`, flipping D exchanges its two strings without a sign: that of moving n β past n
α operators, (−1)^(n²), cancels that of the rotation by π about y, β → −α, (−1)^n. So ψ(flipped D) = (−1)^S ψ(D).

States of one spin parity s = (−1)^S are spanned by the closed shells (s = 1 only) and by (|D⟩ + s |flipped D⟩) / √2.
Such a combination is named by its *representative*, the one of D and flipped D whose α string is the larger binary
number. Amplitudes of combinations have |ψ|² that sum to one as those of determinants do.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

SIGN_BIT = torch.iinfo(torch.int64).min


def flip(determinants: Tensor) -> Tensor:
    """α and β strings exchanged, int64 [N, 2, W]."""
    return determinants.flip(1)


def is_open_shell(determinants: Tensor) -> Tensor:
    """Whether the strings differ, so that flipping makes another determinant: bool [N]."""
    return (determinants[:, 0] != determinants[:, 1]).any(-1)


def is_representative(determinants: Tensor) -> Tensor:
    """Whether the α string is at least the β string as a binary number, the last orbital counting most: bool [N]."""
    # Words are unsigned: flipping the sign bit turns their order into that of signed ones.
    alpha, beta = (determinants ^ SIGN_BIT).unbind(1)
    result = torch.ones(len(determinants), dtype=torch.bool, device=determinants.device)
    for word in range(determinants.shape[2]):
        a, b = alpha[:, word], beta[:, word]
        result = torch.where(a == b, result, a > b)
    return result


def represent(determinants: Tensor) -> tuple[Tensor, Tensor]:
    """The representatives, int64 [N, 2, W], and whether they are the flipped determinants, bool [N]."""
    flipped = ~is_representative(determinants)
    return torch.where(flipped[:, None, None], flip(determinants), determinants), flipped


def multiplicities(determinants: Tensor) -> Tensor:
    """Number of determinants in each one's combination: float64 [N], 1 for closed shells and 2 for others."""
    return 1.0 + is_open_shell(determinants).double()


def fold(determinants: Tensor, amplitudes: Tensor, spin_parity: int) -> tuple[Tensor, Tensor]:
    """Project a vector of determinants on the combinations of one spin parity.

    Args:
        determinants: int64 [N, 2, W], distinct.
        amplitudes: [N], of the determinants.
        spin_parity: 1 or −1.

    Returns:
        Representatives int64 [M, 2, W] and the amplitudes of their combinations [M], not normalised again.
    """
    representatives, flipped = represent(determinants)
    rows, place = representatives.flatten(1).unique(dim=0, return_inverse=True)
    distinct = rows.view(-1, *determinants.shape[1:])
    signed = torch.where(flipped, spin_parity * amplitudes, amplitudes)
    sums = torch.zeros(len(distinct), dtype=amplitudes.dtype, device=amplitudes.device).index_add_(0, place, signed)
    sums = sums / multiplicities(distinct).sqrt()
    kept = is_open_shell(distinct) if spin_parity == -1 else slice(None)
    return distinct[kept], sums[kept]


@dataclass(frozen=True)
class Expansion:
    """Combinations written out: Σ_k share_k ψ(member_k) |determinant_k⟩."""

    determinants: Tensor
    """int64 [M, 2, W]: the representatives, then the flipped ones of the open shells."""
    member: Tensor
    """int64 [M]: position of the combination that each determinant belongs to."""
    share: Tensor
    """float64 [M]: coefficient of each determinant in its combination."""


def expand(representatives: Tensor, spin_parity: int) -> Expansion:
    """Inverse of :func:`fold`, for any amplitudes."""
    opened = is_open_shell(representatives).nonzero().squeeze(1)
    member = torch.cat([torch.arange(len(representatives), device=opened.device), opened])
    share = multiplicities(representatives).rsqrt()[member]
    share[len(representatives) :] *= spin_parity
    return Expansion(torch.cat([representatives, flip(representatives[opened])]), member, share)
