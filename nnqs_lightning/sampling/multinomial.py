"""Multinomial branching: the walkers are independent, as in the published batch autoregressive sampling."""

from __future__ import annotations

import torch
from torch import Tensor

from nnqs_lightning.sampling.walkers import WalkerSampler


class MultinomialSampler(WalkerSampler):
    """The children of a node share its walkers multinomially, by conditional binomials in int64.

    Barrett, Malyshev and Lvovsky, Nature Machine Intelligence 4, 351 (2022). The law of n independent draws from |ψ|²;
    binomials are exact to float64 rounding of their probabilities (see :mod:`nnqs_lightning.sampling.binomial`). It
    runs on the CPU wherever the ansatz is.
    """

    walker_limit = 2**53

    def split(self, counts: Tensor, log_conditionals: Tensor, hashes: Tensor) -> Tensor:
        """See :meth:`WalkerSampler.split`."""
        # Compiled on first use: importing Numba would slow down the start of every command.
        from nnqs_lightning.sampling.binomial import multinomial

        p = log_conditionals.exp().cpu().numpy()
        children = multinomial(counts.cpu().numpy(), p, hashes.cpu().numpy())
        return torch.from_numpy(children).to(counts.device)
