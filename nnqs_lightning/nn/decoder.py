"""A decoder-only transformer over pair tokens."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from nnqs_lightning.nn.attention import CausalSelfAttention
from nnqs_lightning.nn.cache import KeyValueCache
from nnqs_lightning.nn.positional.base import PositionalScheme

N_TOKENS = 4
START = N_TOKENS
"""The start token; as a pair token it would carry neither spin."""
HEAD_STD = 0.01

Activation = Callable[[], nn.Module]
"""A class such as ``torch.nn.GELU``."""


class Block(nn.Module):
    """Pre-norm attention and MLP, each added to the residual stream (Xiong et al. 2020, 2002.04745)."""

    def __init__(self, d_model: int, n_heads: int, d_hidden: int, activation: Activation, layer: int) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(d_model)
        self.attention = CausalSelfAttention(d_model, n_heads, layer)
        self.norm_mlp = nn.LayerNorm(d_model)
        self.mlp = nn.Sequential(nn.Linear(d_model, d_hidden), activation(), nn.Linear(d_hidden, d_model))

    def forward(
        self, x: Tensor, positional: PositionalScheme, positions: Tensor, cache: KeyValueCache | None = None
    ) -> Tensor:
        """[N, T, d_model] → the same shape; arguments as in :class:`CausalSelfAttention`."""
        x = x + self.attention(self.norm_attention(x), positional, positions, cache)
        return x + self.mlp(self.norm_mlp(x))


class Decoder(nn.Module):
    """Hidden states and logits of the next pair token, for whole sequences or one token at a time.

    All layers share one positional scheme. Training and incremental decoding take the places of tokens from the
    same table, which starts at ``positional.context.start_position``.

    Args:
        positional: scheme; its context fixes the length L, the width and the heads.
        n_layers: number of blocks.
        d_hidden: width of the MLPs.
        activation: class of the MLPs' nonlinearity.
    """

    def __init__(self, positional: PositionalScheme, n_layers: int, d_hidden: int, activation: Activation) -> None:
        super().__init__()
        context = positional.context
        self.n_heads = context.n_heads
        self.d_head = context.d_head
        self.positional = positional
        self.tokens = nn.Embedding(N_TOKENS + 1, context.d_model)
        self.blocks = nn.ModuleList(
            Block(context.d_model, context.n_heads, d_hidden, activation, layer) for layer in range(n_layers)
        )
        self.norm = nn.LayerNorm(context.d_model)
        self.head = nn.Linear(context.d_model, N_TOKENS)
        # Small weights make all allowed tokens about equally likely at the start.
        nn.init.normal_(self.head.weight, std=HEAD_STD)
        nn.init.zeros_(self.head.bias)
        self.places: Tensor
        places = torch.arange(context.n_positions) + context.start_position
        self.register_buffer("places", places, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Hidden states after the last norm.

        Args:
            tokens: int64 [N, L] pair tokens; the last one is not read.

        Returns:
            [N, L, d_model]; state i depends on tokens 0 … i − 1 only, and :attr:`head` turns it into logits of t_i.
        """
        return self._run(self._inputs(tokens), self.places)

    @torch.no_grad()
    def begin(self) -> tuple[KeyValueCache, Tensor]:
        """Cache and hidden state [1, d_model] of the start token alone."""
        empty = KeyValueCache.empty(len(self.blocks), self.n_heads, self.d_head, like=self.head.weight)
        row = torch.zeros(1, dtype=torch.int64, device=self.places.device)
        return self.step(empty, row, torch.full_like(row, START))

    @torch.no_grad()
    def step(self, cache: KeyValueCache, parents: Tensor, tokens: Tensor) -> tuple[KeyValueCache, Tensor]:
        """Append ``tokens[m]`` to row ``parents[m]`` of a cache, which stays as it is. Without gradient.

        Args:
            cache: prefixes to extend.
            parents: int64 [M].
            tokens: int64 [M].

        Returns:
            The extended cache and the newest hidden states [M, d_model].
        """
        extended = cache.branch(parents)
        hidden = self._run(tokens[:, None], self.places[: len(extended)], extended)
        return extended, hidden[:, 0]

    @torch.no_grad()
    def line(self, cache: KeyValueCache, tokens: Tensor) -> tuple[KeyValueCache, Tensor]:
        """All steps of one sequence in one pass, in the pool of ``cache``. Without gradient.

        Args:
            cache: any cache of this decoder.
            tokens: int64 [L]; the last one is not read.

        Returns:
            A cache of one row with L inputs, the start token among them, and the hidden states [L, d_model].
        """
        filled = cache.line(len(tokens))
        return filled, self._run(self._inputs(tokens[None]), self.places[: len(tokens)], filled)[0]

    @staticmethod
    def _inputs(tokens: Tensor) -> Tensor:
        """The start token in front of all pair tokens but the last: int64 [N, L] → int64 [N, L]."""
        return torch.cat([torch.full_like(tokens[:, :1], START), tokens[:, :-1]], dim=1)

    def _run(self, inputs: Tensor, positions: Tensor, cache: KeyValueCache | None = None) -> Tensor:
        x = self.positional.embed(self.tokens(inputs), positions[-inputs.shape[1] :], inputs)
        for block in self.blocks:
            x = block(x, self.positional, positions, cache)
        return self.norm(x)
