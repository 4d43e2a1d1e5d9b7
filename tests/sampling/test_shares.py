"""Any number of ranks draws the same set, each determinant once."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from sampling_ranks import on_ranks
from table_ansatz import TableAnsatz

from nnqs_lightning import distributed, memory
from nnqs_lightning.ansatz import TransformerAnsatz
from nnqs_lightning.chem import MolecularIntegrals
from nnqs_lightning.fock import SampleBatch, Sector
from nnqs_lightning.sampling import (
    CoreSetSampler,
    GumbelTopKSampler,
    MetropolisSampler,
    MultinomialSampler,
    SumOverStates,
    SystematicSampler,
    prefix,
    tree,
)
from nnqs_lightning.sampling.density import Density, nodes_opened
from nnqs_lightning.sampling.leaves import Leaves, collect
from nnqs_lightning.sampling.shares import Share, guessed_cut, own_share

LENGTHS = [7, 0, 2, 6]
SAMPLER = SystematicSampler(20_000)


def draw_twice() -> dict[str, list[SampleBatch]]:
    """Two steps of every sampler: ranks share the second by the density of the first."""
    ansatz = TableAnsatz(Sector(7, 3, 4))
    samplers = [
        SystematicSampler(3000, target_unique=600),
        MultinomialSampler(3000, target_unique=600),
        GumbelTopKSampler(400),
        CoreSetSampler(MultinomialSampler(3000), core_size=50),
        MetropolisSampler(n_chains=6, n_sweeps=20, burn_in=2),
        SumOverStates(),
    ]
    draws = {}
    for sampler in samplers:
        batches = draws[type(sampler).__name__] = []
        for step in range(2):
            batches.append(sampler.sample(ansatz, seed=3, step=step))
            sampler.observe(batches[-1])
    return draws


def level() -> tuple[torch.Tensor, torch.Tensor]:
    rows = torch.arange(LENGTHS[distributed.rank()]) + 100 * distributed.rank()
    first, second = distributed.level_rows([rows, rows[:, None].double() * torch.ones(2)])
    return first, second


def work():
    """All that the tests below look at: starting processes takes longer than the work."""
    return draw_twice(), level() if distributed.world_size() == len(LENGTHS) else None


@pytest.fixture(scope="module")
def alone():
    return draw_twice()


@pytest.fixture(scope="module")
def four_ranks():
    return on_ranks(4, work)


@pytest.fixture(scope="module", params=[2, 4])
def ranks(request):
    return request.getfixturevalue("four_ranks") if request.param == 4 else on_ranks(2, work)


def whole(batches: list[SampleBatch]) -> dict[tuple, tuple]:
    rows = {}
    for batch in batches:
        for determinant, log_psi, weight in zip(batch.determinants, batch.log_psi, batch.weights, strict=True):
            key = tuple(determinant.flatten().tolist())
            assert key not in rows
            rows[key] = (complex(log_psi), float(weight))
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("step", [0, 1])
@pytest.mark.parametrize(
    "name",
    [
        "SystematicSampler",
        "MultinomialSampler",
        "GumbelTopKSampler",
        "CoreSetSampler",
        "MetropolisSampler",
        "SumOverStates",
    ],
)
def test_ranks_together_draw_what_one_process_draws(name, step, alone, ranks):
    parts = [draws[name][step] for draws, _ in ranks]
    expected, found = whole([alone[name][step]]), whole(parts)
    assert expected.keys() == found.keys()
    for key, (log_psi, weight) in expected.items():
        assert found[key] == (pytest.approx(log_psi, abs=1e-12), pytest.approx(weight, rel=1e-13))
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert all(part.stats == pytest.approx(alone[name][step].stats) for part in parts)


def network() -> TransformerAnsatz:
    torch.manual_seed(2)
    integrals = MolecularIntegrals(np.diag(np.arange(10.0)), np.zeros((10,) * 4), e_core=0.0, n_alpha=3, n_beta=3)
    ansatz = TransformerAnsatz(integrals, d_model=16, n_heads=2, n_layers=1).double()
    torch.nn.init.normal_(ansatz.decoder.head.weight, std=0.3)
    return ansatz


def grown(ansatz, share: Share, rows: int = 4096) -> Leaves:
    leaves = collect([*share.leaves, *tree.walk(ansatz, share.branches, SAMPLER._rule, rows)])
    leaves.sort()
    return leaves


@pytest.fixture(scope="module")
def planted():
    """A network, the root of a draw from it, and all leaves."""
    ansatz = network()
    with torch.inference_mode():
        root = tree.Branch.root(torch.tensor([SAMPLER.n_walkers]), 5, ansatz.sector)
        return ansatz, root, grown(ansatz, Share([root]))


def bounds(planted, rank: int, world: int, guessed: bool) -> list[torch.Tensor | None]:
    """Where the interval of a rank begins and ends."""
    ansatz, root, leaves = planted

    def cut(part: int) -> torch.Tensor | None:
        if part in (0, world):
            return None
        if guessed:
            return guessed_cut(ansatz, root, SAMPLER._rule, lambda nodes: nodes.values.double().sqrt(), part, world)
        return Density.measure(leaves, 10).cuts(world)[part - 1]

    return [cut(rank), cut(rank + 1)]


@pytest.mark.parametrize("guessed", [False, True])
@pytest.mark.parametrize("world", [2, 3, 11, 5000])
def test_shares_of_all_ranks_make_up_the_tree(world, guessed, planted):
    ansatz, root, whole = planted
    with torch.inference_mode():
        for rank in range(world) if world < 100 else (0, 1, 2400, 2401, world - 1):
            lower, upper = bounds(planted, rank, world, guessed)
            part = grown(ansatz, own_share(ansatz, root, SAMPLER._rule, lower, upper))
            keys = whole.keys[:, 0]
            begin = 0 if lower is None else int(torch.searchsorted(keys, lower))
            end = len(keys) if upper is None else int(torch.searchsorted(keys, upper))
            assert torch.equal(part.keys, whole.keys[begin:end])
            assert torch.equal(part.values, whole.values[begin:end])


def test_no_walker_is_lost_between_ranks_whose_batches_round_otherwise(planted, monkeypatch):
    """Probabilities depend on the size of a batch by 1e-7, as in float32: of 1e12 walkers, thousands would move."""
    _, _, leaves = planted
    ansatz, n_walkers = network(), 10**12
    exactly = ansatz.log_conditionals
    monkeypatch.setattr(
        ansatz, "log_conditionals", lambda state: (exactly(state) * (1 + 1e-7 * len(state))).log_softmax(1)
    )
    with torch.inference_mode():
        root = tree.Branch.root(torch.tensor([n_walkers]), 5, ansatz.sector)
        bounds = [None, *Density.measure(leaves, 10).cuts(4), None]
        parts = [
            grown(ansatz, own_share(ansatz, root, SAMPLER._rule, lower, upper)) for lower, upper in pairwise(bounds)
        ]
        alone = grown(ansatz, Share([root]))
    assert sum(int(part.values.sum()) for part in parts) == n_walkers
    keys = torch.cat([part.keys for part in parts])
    assert len(keys.unique()) == len(keys)
    assert not torch.equal(torch.cat([part.values for part in parts]), alone.values)


def test_a_common_prefix_of_two_cuts_rounds_alike(planted):
    """Neighbours decode it on the way to different cuts: one bit of difference, and walkers are lost."""
    ansatz, _, leaves = planted
    single = network().float()
    begin = single.begin()
    checked = 0
    for first, second in pairwise(prefix.unpack(leaves.keys[::5], ansatz.n_steps).long()):
        both = zip(single.along(begin, first), single.along(begin, second), strict=True)
        for depth, states in enumerate(both):
            if torch.equal(first[:depth], second[:depth]):
                assert torch.equal(*(single.log_conditionals(state) for state in states))
                checked += depth > 0
    assert checked > 100


@pytest.mark.parametrize("guessed", [False, True])
def test_ranks_share_few_nodes_and_the_work_of_the_others_evenly(guessed, planted):
    ansatz, root, whole = planted
    world, loads = 8, []
    with torch.inference_mode():
        for rank in range(world):
            decoded = []

            def rule(nodes, log_conditionals, decoded=decoded):
                decoded.append(len(nodes))
                return SAMPLER._rule(nodes, log_conditionals)

            share = own_share(ansatz, root, rule, *bounds(planted, rank, world, guessed))
            alone = list(decoded)
            # One node at a time, out of a pass over the cut alone, so that it rounds alike on all of them.
            assert set(alone) == {1}
            assert len(alone) <= 2 * ansatz.n_steps
            collect([*share.leaves, *tree.walk(ansatz, share.branches, rule, 4096)])
            loads.append(sum(decoded) - len(alone))
    # A guess knows nothing of the tree; it must keep all ranks busy all the same.
    assert max(loads) < (3 if guessed else 1.1) * sum(loads) / world
    assert sum(loads) < int(nodes_opened(whole.keys, 10).sum())


def test_a_pass_over_each_cut_decodes_the_whole_way(planted, monkeypatch):
    ansatz, root, _ = planted
    passes, steps = [], []
    line, step = ansatz.decoder.line, ansatz.decoder.step
    monkeypatch.setattr(ansatz.decoder, "line", lambda *args: passes.append(args) or line(*args))
    monkeypatch.setattr(ansatz.decoder, "step", lambda *args: steps.append(args) or step(*args))
    with torch.inference_mode():
        lower, upper = bounds(planted, 1, 3, guessed=False)
        own_share(ansatz, root, SAMPLER._rule, lower, upper)
    assert len(passes) == 2
    assert len(steps) == 1  # the start token, whose cache both go into


@pytest.mark.parametrize("options", [{"spin_flip": "even"}, {"point_group": True}])
def test_shares_make_up_a_tree_with_symmetry(options):
    torch.manual_seed(3)
    eri = np.zeros((8,) * 4)
    integrals = MolecularIntegrals(
        np.diag(np.arange(8.0)), eri, e_core=0.0, n_alpha=3, n_beta=3, orbsym=(1, 2, 3, 1, 5, 1, 2, 8), wfn_sym=1
    )
    ansatz = TransformerAnsatz(integrals, d_model=16, n_heads=2, n_layers=1, **options).double()
    torch.nn.init.normal_(ansatz.decoder.head.weight, std=0.3)
    with torch.inference_mode():
        root = tree.Branch.root(torch.tensor([SAMPLER.n_walkers]), 5, ansatz.sector)
        whole = grown(ansatz, Share([root]))
        cuts = [None, *Density.measure(whole, 8).cuts(3), None]
        parts = [grown(ansatz, own_share(ansatz, root, SAMPLER._rule, *pair)) for pair in pairwise(cuts)]
    assert torch.equal(torch.cat([part.keys for part in parts]), whole.keys)
    assert torch.equal(torch.cat([part.values for part in parts]), whole.values)


def test_a_walk_gives_the_holes_of_the_heap_back(planted, monkeypatch):
    ansatz, root, _ = planted
    tidied = []
    monkeypatch.setattr(memory.Heap, "tidy", lambda self: tidied.append(self.slack))
    with torch.inference_mode():
        grown(ansatz, Share([root]))
    assert len(tidied) >= ansatz.n_steps - 1


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_what_a_rank_owns_is_decoded_together_whatever_its_depths(rank, planted, monkeypatch):
    ansatz, root, _ = planted
    with torch.inference_mode():
        share = own_share(ansatz, root, SAMPLER._rule, *bounds(planted, rank, 3, guessed=False))
        assert len({branch.nodes.depth for branch in share.branches}) >= 3
        calls = []
        advance = ansatz.advance
        monkeypatch.setattr(ansatz, "advance", lambda *args: calls.append(args) or advance(*args))
        together = grown(ansatz, share)
        assert len(calls) <= ansatz.n_steps
        monkeypatch.setattr(ansatz, "join", lambda states: None)
        alone = grown(ansatz, share)
        assert len(calls) > 2 * ansatz.n_steps
    assert torch.equal(together.keys, alone.keys)
    assert torch.equal(together.values, alone.values)
    torch.testing.assert_close(together.log_p, alone.log_p, rtol=1e-12, atol=0)


@pytest.mark.slow
def test_levelling_loses_no_row_and_moves_only_the_surplus(four_ranks):
    parts = [levelled for _, levelled in four_ranks]
    rows = [first.tolist() for first, _ in parts]
    assert sorted(map(len, rows)) == [3, 4, 4, 4]
    assert sorted(row for part in rows for row in part) == [
        100 * rank + i for rank, n in enumerate(LENGTHS) for i in range(n)
    ]
    assert rows[2][:2] == [200, 201]
    assert all(torch.equal(second, first[:, None].double() * torch.ones(2)) for first, second in parts)
