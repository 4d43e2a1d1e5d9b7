"""What is remembered of a draw."""

import pytest
import torch
from table_ansatz import TableAnsatz

from nnqs_lightning.fock import Sector
from nnqs_lightning.sampling import SystematicSampler, density, prefix, tree
from nnqs_lightning.sampling.density import Density, nodes_opened
from nnqs_lightning.sampling.leaves import Leaves, collect

N_ORB = 7


def draw(ansatz, n_walkers=2000) -> tuple[Leaves, list[tuple]]:
    """Sorted leaves, and all prefixes that were decoded on the way to them."""
    sampler, decoded = SystematicSampler(n_walkers), []

    def rule(nodes, log_conditionals):
        decoded.extend(tuple(tokens) for tokens in prefix.unpack(nodes.keys, nodes.depth).tolist())
        return sampler._rule(nodes, log_conditionals)

    root = tree.Branch.root(torch.tensor([n_walkers]), 5, ansatz.sector)
    leaves = collect(tree.walk(ansatz, [root], rule, 100))
    leaves.sort()
    return leaves, decoded


@pytest.fixture(scope="module")
def drawn():
    return draw(TableAnsatz(Sector(N_ORB, 3, 4)))


def below(decoded, whole) -> int:
    """How many of the prefixes begin one of these sequences."""
    heads = {tuple(tokens[:depth]) for tokens in whole for depth in range(N_ORB)}
    return sum(node in heads for node in decoded)


def test_every_node_decoded_is_counted_at_the_first_leaf_below_it(drawn):
    leaves, decoded = drawn
    tokens = prefix.unpack(leaves.keys, N_ORB).tolist()
    assert len(set(decoded)) == len(decoded)
    opened = nodes_opened(leaves.keys, N_ORB)
    path_of_the_first = below(decoded, tokens[:1])
    for n in (1, 2, 17, len(tokens)):
        assert path_of_the_first + int(opened[:n].sum()) == below(decoded, tokens[:n])
    assert int(opened[0]) == 0
    assert path_of_the_first + int(opened.sum()) == len(decoded)


@pytest.mark.parametrize("most", [2**19, 60])
def test_cuts_part_the_nodes_of_the_draw_equally(drawn, most, monkeypatch):
    leaves, decoded = drawn
    monkeypatch.setattr(density, "MAX_KEPT", most)
    remembered = Density.measure(leaves, N_ORB)
    assert len(remembered.keys) <= most
    cuts = remembered.cuts(4)
    owner = sum((~prefix.before(leaves.keys, cut)).long() for cut in cuts)
    opened = nodes_opened(leaves.keys, N_ORB)
    work = [int(opened[owner == part].sum()) for part in range(4)]
    # A leaf opens up to N_ORB nodes, which no cut parts; a selection is as fine as its spacing.
    assert max(work) - min(work) <= 2 * N_ORB + 2 * len(decoded) / most


def test_parts_are_empty_where_there_are_fewer_leaves_than_parts(drawn):
    leaves, _ = drawn
    for few in (leaves[:0], leaves[:3]):
        cuts = Density.measure(few, N_ORB).cuts(50)
        assert cuts.shape == (49, 1)
        assert (cuts.diff(dim=0) >= 0).all()


def test_a_density_survives_a_checkpoint(drawn):
    remembered = Density.measure(drawn[0], N_ORB)
    restored = density.density_from(density.density_state(remembered))
    assert torch.equal(restored.cuts(5), remembered.cuts(5))
    assert density.density_from(density.density_state(None)) is None
