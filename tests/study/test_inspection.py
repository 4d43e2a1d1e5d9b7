"""Attention maps and biases as a decoder has them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from tiny_study import POSITIONAL, chain, scheme

from nnqs_lightning.chem import HydrogenChain
from nnqs_lightning.study.design import Study
from nnqs_lightning.study.inspection import (
    attention_maps,
    inspect,
    over_orbitals,
    pair_matrices,
    positional_bias,
    rank_correlation,
    relative_attention,
)
from nnqs_lightning.study.training import prepare

MakeStudy = Callable[..., Study]


def test_attention_is_a_causal_average(make_study: MakeStudy) -> None:
    cell = make_study(systems={"h4": chain(4)}).cells()[0]
    run = prepare(cell.config, 0)
    maps = attention_maps(run.module.ansatz, run.sample())
    assert maps.shape == (1, 2, 4, 4)
    torch.testing.assert_close(maps.sum(-1), torch.ones(1, 2, 4, dtype=torch.float64), rtol=0, atol=1e-6)
    assert (maps.triu(1) == 0).all()


def test_attention_is_weighted_by_the_sample(make_study: MakeStudy) -> None:
    cell = make_study(systems={"h4": chain(4)}).cells()[0]
    run = prepare(cell.config, 0)
    sample = run.sample()
    single = sample.weights * 0
    single[3] = 1.0
    whole = attention_maps(run.module.ansatz, sample)
    each = []
    for row in range(len(sample)):
        sample.weights = torch.eye(len(sample), dtype=torch.float64)[row]
        each.append(attention_maps(run.module.ansatz, sample))
    expected = torch.einsum("n,nlhij->lhij", run.sample().weights, torch.stack(each))
    torch.testing.assert_close(whole, expected)


def test_the_bias_is_what_attention_adds(make_study: MakeStudy) -> None:
    study = make_study(
        {"learned": scheme(f"{POSITIONAL}.Alibi"), "none": scheme(f"{POSITIONAL}.NoPositional")}, {"h4": chain(4)}
    )
    alibi, none, *_ = (prepare(cell.config, 0).module.ansatz.decoder.positional for cell in study.cells())
    bias = positional_bias(alibi)
    assert bias is not None
    # Two heads have the slopes 2^-4 and 2^-8.
    np.testing.assert_allclose(bias[:, 3, 0], [-3 / 16, -3 / 256], rtol=1e-6)
    assert positional_bias(none) is None


def test_places_turn_into_orbitals() -> None:
    order = np.array([2, 0, 1])
    maps = np.arange(9.0).reshape(3, 3)
    pairs = over_orbitals(maps, order)
    # The second query predicts orbital 0, its key 1 carries orbital 2; the third predicts 1 and sees 2 and 0.
    assert pairs[0, 2] == maps[1, 1]
    assert pairs[1, 2] == maps[2, 1]
    assert pairs[1, 0] == maps[2, 2]
    assert np.isnan(pairs).sum() == 6


def test_inspection_can_be_written_as_json(make_study: MakeStudy) -> None:
    run = prepare(make_study().cells()[1].config, 0)
    seen = inspect(run.module.ansatz, run.sample())
    assert seen is not None
    assert np.array(seen["bias"]).shape == (2, 2, 2)
    assert seen["order"] == run.module.ansatz.order.tolist()


def test_exchange_is_in_the_order_of_the_integrals() -> None:
    integrals = HydrogenChain(4).integrals()
    np.testing.assert_array_equal(pair_matrices(integrals)["exchange"], integrals.exchange)


def test_even_attention_is_one_wherever_it_can_look() -> None:
    even = np.tril(np.ones((4, 4))) / np.arange(1, 5)[:, None]
    relative = relative_attention([{"attention": even[None, None].tolist(), "order": [3, 1, 0, 2]}])
    assert relative is not None
    assert np.isfinite(relative).sum() == 6
    np.testing.assert_allclose(relative[np.isfinite(relative)], 1.0)
    assert relative_attention([]) is None


def test_the_rank_correlation_sees_order_alone_and_only_between_visible_pairs() -> None:
    matrix = np.array([[0.0, 1.0, 2.0], [1.0, 0.0, 5.0], [2.0, 5.0, 0.0]])
    seen = np.exp(matrix) + np.diag([1e9, -1e9, 1e9])
    seen[0, :] = np.nan
    assert rank_correlation(seen, matrix) == pytest.approx(1.0)
    assert rank_correlation(-seen, matrix) == pytest.approx(-1.0)
    assert np.isnan(rank_correlation(np.ones((3, 3)), matrix))
