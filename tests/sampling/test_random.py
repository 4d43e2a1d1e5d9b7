"""Uniforms are hashes: reproducible, well spread, different wherever they are used."""

import pytest
import torch
from scipy import stats

from nnqs_lightning.sampling import random

MASK = 2**64 - 1


def splitmix_finaliser(x: int) -> int:
    """Written from the published constants with Python's unbounded integers."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def test_hashes_equal_unbounded_integer_arithmetic():
    hashes = torch.tensor([0, 1, -1, 2**63 - 1, -(2**63), 123456789], dtype=torch.int64)
    tokens = torch.tensor([0, 1, 2, 3, 0, 1])
    for before, token, after in zip(
        hashes.tolist(), tokens.tolist(), random.extend(hashes, tokens).tolist(), strict=True
    ):
        assert after & MASK == splitmix_finaliser((before + (token + 1) * 0x9E3779B97F4A7C15) & MASK)
    for before, bits in zip(hashes.tolist(), random.uniform_bits(hashes, 2).tolist(), strict=True):
        assert bits == splitmix_finaliser((before + 7 * 0x9E3779B97F4A7C15) & MASK) & (2**62 - 1)


def test_uniforms_are_uniform_along_every_axis_of_use():
    """Chi-square on 256 bins, each false alarm once in 1e4."""
    n = 100_000
    by_step = torch.tensor([random.draw_key(3, step, 0) for step in range(n)])
    by_seed = torch.tensor([random.draw_key(seed, 0, 1) for seed in range(n)])
    chain = torch.zeros(n, dtype=torch.int64)
    grown = random.extend(random.extend(chain + torch.arange(n) % 4, torch.arange(n) // 4 % 4), torch.arange(n))
    for hashes in (by_step, by_seed, grown):
        u = random.uniform(hashes)
        assert u.min() > 0
        assert u.max() < 1
        assert stats.chisquare(torch.histc(u, 256, 0, 1).numpy()).pvalue > 1e-4
        # Pairs of a node's uniforms fill the square.
        square = (u * 16).long() * 16 + (random.uniform(hashes, 1) * 16).long()
        assert stats.chisquare(square.bincount(minlength=256).numpy()).pvalue > 1e-4


def test_each_input_bit_flips_half_of_the_output_bits():
    x = torch.tensor([random.draw_key(0, step, 0) for step in range(2000)])
    for bit in range(63):
        changed = random.uniform_bits(x) ^ random.uniform_bits(x ^ (1 << bit))
        flips = torch.stack([(changed >> place) & 1 for place in range(62)]).double().mean()
        assert float(flips) == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("other", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (-1, 0, 0), (2**63, 0, 0)])
def test_seed_step_and_stream_are_not_interchangeable(other):
    assert random.draw_key(*other) != random.draw_key(0, 0, 0)
    assert len({random.draw_key(1, 0, 0), random.draw_key(0, 1, 0), random.draw_key(0, 0, 1)}) == 3


def test_extremes_of_the_hash_stay_inside_the_open_interval():
    assert ((torch.tensor([0, 2**62 - 1]) >> 10).double() + 0.5).mul(2.0**-52).tolist() == [2.0**-53, 1 - 2.0**-53]
