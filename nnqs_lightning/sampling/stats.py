"""Figures of a draw for the log."""

from __future__ import annotations

import torch
from torch import Tensor

from nnqs_lightning import distributed


def sample_stats(weights: Tensor) -> dict[str, float]:
    """Sizes of a draw over all ranks.

    Args:
        weights: this rank's weights, float64 [N]; they sum to one over the ranks.

    Returns:
        ``sampling/unique``, the number of determinants, and ``sampling/effective``, 1 / Σ weight².
    """
    moments = torch.stack([weights.new_tensor(float(len(weights))), torch.dot(weights, weights)])
    unique, squares = distributed.all_reduce_sum(moments).tolist()
    return {"sampling/unique": unique, "sampling/effective": 1 / squares}
