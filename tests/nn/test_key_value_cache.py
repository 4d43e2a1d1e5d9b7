"""The pool of keys and values."""

import pytest
import torch

from nnqs_lightning.nn.cache import KeyValueCache, KeyValuePool

N_HEADS, D_HEAD = 2, 3


@pytest.fixture
def cache():
    """Two layers, three prefixes of four tokens below two ancestors, filled with random rows."""
    torch.manual_seed(0)
    cache = KeyValueCache.empty(2, N_HEADS, D_HEAD, like=torch.empty(0, dtype=torch.float64))
    for parents in ([0], [0, 0], [0, 1], [0, 1, 1]):
        cache = cache.branch(torch.tensor(parents))
        for layer in range(2):
            k, v = torch.randn(2, len(parents), N_HEADS, 1, D_HEAD, dtype=torch.float64)
            cache.store(layer, k, v)
    return cache


def test_compiled_attention_equals_products_with_copied_keys_and_values(cache):
    assert cache.compiled
    q = torch.randn(3, N_HEADS, 1, D_HEAD, dtype=torch.float64)
    weights = torch.rand(3, N_HEADS, 1, 4, dtype=torch.float64)
    for layer in range(2):
        k, v = cache.keys_and_values(layer)
        assert k.shape == v.shape == (3, N_HEADS, 4, D_HEAD)
        torch.testing.assert_close(cache.scores(layer, q), q @ k.transpose(-1, -2))
        mixed = (weights @ v).transpose(1, 2).reshape(3, 1, N_HEADS * D_HEAD)
        torch.testing.assert_close(cache.mix(layer, weights), mixed)


def test_siblings_share_the_rows_of_their_ancestors(cache):
    first, second = cache.ancestors[1], cache.ancestors[2]
    assert first[:3].tolist() == second[:3].tolist()
    assert first[3] != second[3]
    assert cache.ancestors[0, 0] == first[0]
    assert cache.ancestors[0, 1] != first[1]


def test_rows_are_never_shared_by_living_blocks_and_come_back_when_forgotten():
    torch.manual_seed(1)
    pool = KeyValuePool(1, 4, like=torch.empty(0))
    blocks = {}
    for turn in range(300):
        if blocks and torch.rand(()) < 0.5:
            blocks.pop(list(blocks)[int(torch.randint(len(blocks), ()))])
        block = pool.take(int(torch.randint(0, 50, ())))
        pool.rows[0, block.first : block.last] = turn
        blocks[turn] = block
        for value, kept in blocks.items():
            assert (pool.rows[0, kept.first : kept.last] == value).all()
    held = pool.rows.shape[1]
    assert held < 4 * sum(block.last - block.first for block in blocks.values()) + 1024
    blocks.clear()
    del block, kept
    assert pool.take(held).first == 0
    assert pool.rows.shape[1] == held


def test_growing_keeps_what_was_stored():
    pool = KeyValuePool(2, 1, like=torch.empty(0, dtype=torch.float64))
    small = pool.take(10)
    pool.rows[:, small.first : small.last] = 7.0
    large = pool.take(5000)
    assert (pool.rows[:, small.first : small.last] == 7.0).all()
    assert large.first >= small.last
