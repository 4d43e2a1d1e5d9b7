"""The decoder by itself: causality, caching, types."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from nnqs_lightning.nn import Decoder
from nnqs_lightning.nn.attention import RowSoftmax
from nnqs_lightning.nn.positional import NoPositional, PositionContext


@pytest.fixture
def decoder() -> Decoder:
    torch.manual_seed(0)
    context = PositionContext(n_positions=6, d_model=12, n_heads=3, d_head=4)
    return Decoder(NoPositional(context), n_layers=2, d_hidden=20, activation=nn.GELU).double()


def attention_by_hand(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """One softmax average per query and head."""
    _, t, d = x.shape
    q, k, v = layer.qkv(x).split(d, dim=-1)
    mixed = torch.zeros_like(x)
    width = layer.d_head
    for head in range(layer.n_heads):
        own = slice(head * width, (head + 1) * width)
        for i in range(t):
            scores = torch.stack([(q[:, i, own] * k[:, j, own]).sum(-1) / width**0.5 for j in range(i + 1)], dim=-1)
            weights = torch.softmax(scores, dim=-1)
            mixed[:, i, own] = sum(weights[:, j, None] * v[:, j, own] for j in range(i + 1))
    return layer.out(mixed)


def test_attention_is_a_causal_softmax_average(decoder):
    x = torch.randn(2, 6, 12, dtype=torch.float64)
    layer = decoder.blocks[0].attention
    torch.testing.assert_close(layer(x, decoder.positional, torch.arange(6)), attention_by_hand(layer, x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [1, 7, 15, 16, 20])
def test_row_softmax_is_softmax(dtype, width):
    scores = torch.randn(3, 2, width, dtype=dtype)
    scores[0, 0, 1:] = -torch.inf
    weights = RowSoftmax()(scores)
    exponentials = scores.double().exp()
    torch.testing.assert_close(weights, (exponentials / exponentials.sum(-1, keepdim=True)).to(dtype))


def test_hidden_states_do_not_see_the_last_token(decoder):
    tokens = torch.randint(0, 4, (5, 6))
    changed = tokens.clone()
    changed[:, -1] = (changed[:, -1] + 1) % 4
    assert torch.equal(decoder(tokens), decoder(changed))


def test_steps_give_the_hidden_states_of_a_full_pass(decoder):
    tokens = torch.randint(0, 4, (5, 6))
    full = decoder(tokens)
    cache, hidden = decoder.begin()
    torch.testing.assert_close(hidden.expand(5, -1), full[:, 0])
    parents = torch.zeros(5, dtype=torch.int64)
    for i in range(5):
        cache, hidden = decoder.step(cache, parents, tokens[:, i])
        parents = torch.arange(5)
        torch.testing.assert_close(hidden, full[:, i + 1])
    assert len(cache) == 6


def test_a_step_copies_the_rows_of_its_parents_and_leaves_the_cache(decoder):
    cache, _ = decoder.begin()
    row = torch.zeros(1, dtype=torch.int64)
    cache, _ = decoder.step(cache, row.expand(2), torch.tensor([1, 2]))
    first, _ = decoder.step(cache, torch.tensor([1, 1, 0]), torch.tensor([0, 3, 3]))
    again, hidden = decoder.step(cache, torch.tensor([1]), torch.tensor([3]))
    tokens = torch.tensor([[2, 3, 0, 0, 0, 0]])
    torch.testing.assert_close(hidden, decoder(tokens)[:, 2])
    assert (len(cache), len(first), len(again)) == (2, 3, 3)


def test_parameters_sit_in_layers_with_known_per_sample_gradients(decoder):
    known = (nn.Linear, nn.Embedding, nn.LayerNorm)
    owned = {id(p) for m in decoder.modules() if isinstance(m, known) for p in m.parameters(recurse=False)}
    assert {id(p) for p in decoder.parameters()} == owned
