"""Packed prefixes behave as lists of tokens, also across the border of a word."""

import pytest
import torch

from nnqs_lightning.sampling import prefix

LENGTHS = [1, 30, 31, 32, 62, 75]


@pytest.fixture(params=LENGTHS)
def tokens(request):
    torch.manual_seed(request.param)
    rows = torch.randint(0, 4, (60, request.param))
    # Long common prefixes, some up to the last token.
    rows[20:40, :-1] = rows[:1, :-1]
    rows[40:, : request.param // 2] = 0
    return rows


def test_unpacking_inverts_packing(tokens):
    keys = prefix.pack(tokens)
    assert keys.shape == (60, prefix.width(tokens.shape[1]))
    assert (keys >= 0).all()
    assert prefix.unpack(keys, tokens.shape[1]).tolist() == tokens.tolist()


def test_appending_token_by_token_is_packing(tokens):
    keys = torch.zeros_like(prefix.pack(tokens))
    for depth, column in enumerate(tokens.unbind(1)):
        keys = prefix.append(keys, depth, column)
        assert torch.equal(prefix.token(keys, depth), column)
    assert torch.equal(keys, prefix.pack(tokens))


def test_keys_are_ordered_as_lists_of_tokens(tokens):
    keys = prefix.pack(tokens)
    assert tokens[prefix.in_order(keys)].tolist() == sorted(tokens.tolist())
    for row in (0, 25, 59):
        expected = [other < tokens[row].tolist() for other in tokens.tolist()]
        assert prefix.before(keys, keys[row]).tolist() == expected


@pytest.mark.parametrize("token", [1, 2, 3])
def test_completing_a_prefix_repeats_one_token(tokens, token):
    length = tokens.shape[1]
    for depth in (0, length // 2, length - 1):
        expected = tokens.clone()
        expected[:, depth:] = token
        head = tokens.clone()
        head[:, depth:] = 0
        keys = prefix.pack(head) | token * prefix.filled(length, depth, tokens.device)
        assert torch.equal(keys, prefix.pack(expected))


def test_electrons_are_counted_by_spin(tokens):
    alpha, beta = prefix.electrons(prefix.pack(tokens))
    assert torch.equal(alpha, (tokens & 1).sum(1))
    assert torch.equal(beta, (tokens >> 1).sum(1))
