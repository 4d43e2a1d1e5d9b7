"""Tokens and determinants name the same occupations."""

from __future__ import annotations

import pytest
import torch

from nnqs_lightning.ansatz.tokens import detokenize, signs, tokenize
from nnqs_lightning.fock import pack


@pytest.mark.parametrize("n_orb", [1, 10, 14, 20, 35, 64, 65, 130])
def test_tokens_are_occupations_in_decoding_order(n_orb):
    generator = torch.Generator().manual_seed(n_orb)
    occupation = torch.randint(0, 2, (7, n_orb, 2), generator=generator)
    order = torch.randperm(n_orb, generator=generator)
    determinants = pack(occupation)
    tokens = tokenize(determinants, order)
    expected = [[row[p][0] + 2 * row[p][1] for p in order.tolist()] for row in occupation.tolist()]
    assert tokens.tolist() == expected
    assert torch.equal(detokenize(tokens, order), determinants)


def test_signs_are_plus_one_for_occupied_alpha_then_beta():
    assert signs(torch.tensor([[0, 1, 2, 3]])).tolist() == [[-1, -1, 1, -1, -1, 1, 1, 1]]
