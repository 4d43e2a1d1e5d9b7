"""What is remembered of a draw."""

import pytest
import torch
from table_ansatz import TableAnsatz

from nnqs_lightning.fock import Sector
from nnqs_lightning.sampling import SystematicSampler, density, tree
from nnqs_lightning.sampling.density import Density, expected_leaves


@pytest.fixture(scope="module")
def leaves():
    ansatz = TableAnsatz(Sector(7, 3, 4))
    tokens = ansatz.to_tokens(SystematicSampler(2000).sample(ansatz, seed=0, step=0).determinants).to(torch.uint8)
    ones = torch.ones(len(tokens))
    return tree.in_order(tree.Nodes(tokens, ones, ones, ones.long()))


def prefixes(tokens):
    unique = tokens.unique(dim=0) if tokens.shape[1] else tokens[:1]
    ones = torch.ones(len(unique))
    return tree.Nodes(unique, ones, ones, ones.long())


@pytest.mark.parametrize("depth", range(8))
def test_leaves_below_a_prefix_are_counted(leaves, depth):
    nodes = prefixes(leaves.tokens[:, :depth])
    expected = [int((leaves.tokens[:, :depth] == prefix).all(1).sum()) for prefix in nodes.tokens]
    assert Density.measure(leaves).count(nodes).tolist() == expected
    assert sum(expected) == len(leaves)


def test_a_selection_of_leaves_stands_for_all(leaves, monkeypatch):
    monkeypatch.setattr(density, "MAX_KEPT", 50)
    selection = Density.measure(leaves)
    assert len(selection.tokens) <= 50
    nodes = prefixes(leaves.tokens[:, :2])
    counts = selection.count(nodes)
    assert counts.sum() == pytest.approx(len(leaves), abs=selection.spacing)
    exact = [int((leaves.tokens[:, :2] == prefix).all(1).sum()) for prefix in nodes.tokens]
    assert (counts - torch.tensor(exact)).abs().max() <= selection.spacing


def test_new_prefixes_are_guessed_from_their_walkers(leaves):
    unseen = tree.Nodes(torch.full((1, 7), 3, dtype=torch.uint8), torch.ones(1), torch.ones(1), torch.ones(1).long())
    walkers = torch.tensor([25.0], dtype=torch.float64)
    assert expected_leaves(Density.measure(leaves), unseen, walkers).tolist() == [5.0]
    assert expected_leaves(None, unseen, walkers).tolist() == [5.0]


def test_a_density_survives_a_checkpoint(leaves):
    saved = density.density_state(Density.measure(leaves))
    restored = density.density_from(saved)
    nodes = prefixes(leaves.tokens[:, :3])
    assert torch.equal(restored.count(nodes), Density.measure(leaves).count(nodes))
    assert density.density_from(density.density_state(None)) is None
