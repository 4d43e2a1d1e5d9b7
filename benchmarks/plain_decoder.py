"""Batch autoregressive sampling as one would first write it in PyTorch: the baseline of ``sampling.py``.

Breadth first; every layer keeps keys and values [rows, H, T, d_head], copied for the children of each node, and calls
``scaled_dot_product_attention``. It reads the weights of a :class:`TransformerAnsatz` without a positional scheme.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import gelu, scaled_dot_product_attention

from nnqs_lightning.ansatz import TransformerAnsatz
from nnqs_lightning.ansatz.constraint import masked_log_softmax

START = 4


def sample_cached(ansatz: TransformerAnsatz, n_walkers: int) -> tuple[Tensor, Tensor]:
    """Tokens [N, L] and counts [N] of a draw, keys and values cached."""
    decoder = ansatz.decoder
    tokens, counts, nodes = _root(ansatz, n_walkers)
    inputs = torch.tensor([START])
    caches: list[tuple[Tensor, Tensor]] = []
    for orbital in range(ansatz.n_steps):
        x = decoder.tokens(inputs)
        for layer, block in enumerate(decoder.blocks):
            attention = block.attention
            qkv = attention.qkv(block.norm_attention(x))
            q, k, v = qkv.view(len(x), 3, attention.n_heads, 1, attention.d_head).unbind(1)
            if orbital:
                k = torch.cat([caches[layer][0], k], dim=2)
                v = torch.cat([caches[layer][1], v], dim=2)
                caches[layer] = (k, v)
            else:
                caches.append((k, v))
            x = x + attention.out(scaled_dot_product_attention(q, k, v).reshape(len(x), -1))
            x = x + block.mlp[2](gelu(block.mlp[0](block.norm_mlp(x))))
        logits = decoder.head(decoder.norm(x))
        tokens, counts, nodes, parents = _branch(ansatz, tokens, counts, nodes, logits, orbital)
        inputs = tokens[:, -1]
        caches = [(k[parents], v[parents]) for k, v in caches]
    return tokens, counts


@torch.inference_mode()
def sample_uncached(ansatz: TransformerAnsatz, n_walkers: int, chunk: int = 1024) -> tuple[Tensor, Tensor]:
    """The same with a whole forward pass for every prefix at every orbital."""
    decoder = ansatz.decoder
    tokens, counts, nodes = _root(ansatz, n_walkers)
    for orbital in range(ansatz.n_steps):
        # The decoder does not read its last token.
        padded = torch.cat([tokens, torch.zeros_like(tokens[:, :1])], dim=1) if orbital else torch.zeros(1, 1).long()
        logits = torch.cat([decoder.head(_forward(decoder, part)) for part in padded.split(chunk)])
        tokens, counts, nodes, _ = _branch(ansatz, tokens, counts, nodes, logits, orbital)
    return tokens, counts


def _forward(decoder: torch.nn.Module, tokens: Tensor) -> Tensor:
    x = decoder.tokens(torch.cat([torch.full_like(tokens[:, :1], START), tokens[:, :-1]], dim=1))
    n, length, _ = x.shape
    for block in decoder.blocks:
        attention = block.attention
        qkv = attention.qkv(block.norm_attention(x)).view(n, length, 3, attention.n_heads, attention.d_head)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + attention.out(mixed.transpose(1, 2).reshape(n, length, -1))
        x = x + block.mlp(block.norm_mlp(x))
    return decoder.norm(x)[:, -1]


def _root(ansatz: TransformerAnsatz, n_walkers: int) -> tuple[Tensor, Tensor, Tensor]:
    tokens = torch.zeros((1, 0), dtype=torch.int64)
    return tokens, torch.tensor([n_walkers]), torch.tensor([ansatz.constraint.root])


def _branch(
    ansatz: TransformerAnsatz, tokens: Tensor, counts: Tensor, nodes: Tensor, logits: Tensor, orbital: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    p = masked_log_softmax(logits, ansatz.constraint.allowed(nodes, orbital)).exp()
    u = torch.rand(len(p), 1, dtype=torch.float64)
    bounds = (counts[:, None] * p.cumsum(1) + u).floor().long()
    bounds[:, -1] = counts
    children = bounds.diff(dim=1, prepend=torch.zeros_like(bounds[:, :1]))
    parents, chosen = torch.nonzero(children > 0, as_tuple=True)
    return (
        torch.cat([tokens[parents], chosen[:, None]], dim=1),
        children[parents, chosen],
        ansatz.constraint.advance(nodes[parents], orbital, chosen),
        parents,
    )
