"""Prefixes of the decoding tree, packed: two bits a token, 31 tokens to an int64 word, the first token highest.

Missing tokens are zeros, so words compare as prefixes do lexicographically, and all determinants below a prefix lie in
one interval of keys: from the prefix with zeros behind it to the prefix with threes.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor

from nnqs_lightning.fock.determinant import popcount

TOKENS_PER_WORD = 31
"""Two bits each: what an int64 holds beside its sign."""
_ALPHA = sum(1 << 2 * place for place in range(TOKENS_PER_WORD))


def width(length: int) -> int:
    """Words of a key of ``length`` tokens."""
    return -(-length // TOKENS_PER_WORD)


def pack(tokens: Tensor) -> Tensor:
    """Keys of whole sequences: [M, L] → int64 [M, width]."""
    keys = tokens.new_zeros((len(tokens), width(tokens.shape[1])), dtype=torch.int64)
    for depth, column in enumerate(tokens.unbind(1)):
        word, shift = _place(depth)
        keys[:, word] |= column.long() << shift
    return keys


def unpack(keys: Tensor, length: int) -> Tensor:
    """The first ``length`` tokens: int64 [M, width] → uint8 [M, length]."""
    tokens = keys.new_empty((len(keys), length), dtype=torch.uint8)
    for depth in range(length):
        tokens[:, depth] = token(keys, depth)
    return tokens


def token(keys: Tensor, depth: int) -> Tensor:
    """The token behind the first ``depth`` ones, int64 [M]."""
    word, shift = _place(depth)
    return (keys[..., word] >> shift) & 3


def append(keys: Tensor, depth: int, tokens: Tensor) -> Tensor:
    """Keys [..., width] of ``depth`` tokens with one more, int64 [...]."""
    word, shift = _place(depth)
    longer = keys.clone()
    longer[..., word] |= tokens << shift
    return longer


@cache
def filled(length: int, depth: int, device: torch.device) -> Tensor:
    """The key [width] of ``depth`` zeros followed by ones up to ``length``; times k: followed by tokens k."""
    words = [0] * width(length)
    for place in range(depth, length):
        word, shift = _place(place)
        words[word] |= 1 << shift
    return torch.tensor(words, device=device)


def electrons(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers of α and of β electrons, each int64 [M]."""
    return popcount(keys & _ALPHA).sum(-1), popcount((keys >> 1) & _ALPHA).sum(-1)


def in_order(keys: Tensor) -> Tensor:
    """The permutation, int64 [M], that sorts prefixes lexicographically."""
    if keys.device.type == "cpu":
        # A third of the memory that PyTorch's sort takes.
        return torch.from_numpy(np.lexsort(keys.numpy().T[::-1]))
    order = torch.sort(keys[:, -1], stable=True).indices
    for word in reversed(range(keys.shape[1] - 1)):
        order = order[torch.sort(keys[order, word], stable=True).indices]
    return order


def before(keys: Tensor, bound: Tensor) -> Tensor:
    """Which keys [..., width] come lexicographically before one bound [width]: bool [...]."""
    result = keys[..., -1] < bound[-1]
    for word in reversed(range(keys.shape[-1] - 1)):
        result = (keys[..., word] < bound[word]) | ((keys[..., word] == bound[word]) & result)
    return result


def _place(depth: int) -> tuple[int, int]:
    word, place = divmod(depth, TOKENS_PER_WORD)
    return word, 2 * (TOKENS_PER_WORD - 1 - place)
