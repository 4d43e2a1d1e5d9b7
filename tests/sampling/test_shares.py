"""Any number of ranks draws the same set, each determinant once."""

import pytest
import torch
from ranks import on_ranks
from table_ansatz import TableAnsatz

from nnqs_lightning import distributed
from nnqs_lightning.fock import SampleBatch, Sector
from nnqs_lightning.sampling import MultinomialSampler, Sampler, SumOverStates, SystematicSampler

SECTOR = Sector(7, 3, 4)


def draw_twice(sampler: Sampler) -> list[SampleBatch]:
    """Two steps: the second is shared out by the density of the first."""
    ansatz = TableAnsatz(SECTOR)
    batches = []
    for step in range(2):
        batches.append(sampler.sample(ansatz, seed=3, step=step))
        sampler.observe(batches[-1])
    return batches


def whole(batches: list[SampleBatch]) -> dict[tuple, tuple]:
    rows = {}
    for batch in batches:
        for determinant, log_psi, weight in zip(batch.determinants, batch.log_psi, batch.weights, strict=True):
            key = tuple(determinant.flatten().tolist())
            assert key not in rows
            rows[key] = (complex(log_psi), float(weight))
    return rows


@pytest.fixture(scope="module", params=[SystematicSampler, MultinomialSampler, SumOverStates])
def sampler(request):
    return request.param() if request.param is SumOverStates else request.param(3000, target_unique=600)


@pytest.mark.parametrize("world", [2, 4])
def test_ranks_together_draw_what_one_process_draws(sampler, world):
    state = sampler.state_dict()
    alone = draw_twice(sampler)
    sampler.load_state_dict(state)
    together = on_ranks(world, draw_twice, sampler)
    for step in range(2):
        parts = [batches[step] for batches in together]
        expected, found = whole([alone[step]]), whole(parts)
        assert expected.keys() == found.keys()
        for key, (log_psi, weight) in expected.items():
            assert found[key] == (pytest.approx(log_psi, abs=1e-12), pytest.approx(weight, rel=1e-13))
        sizes = [len(part) for part in parts]
        assert max(sizes) - min(sizes) <= 1
        assert all(part.stats == pytest.approx(alone[step].stats) for part in parts)


def level(own: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    rows = torch.arange(own[distributed.rank()]) + 100 * distributed.rank()
    first, second = distributed.level_rows([rows, rows[:, None].double() * torch.ones(2)])
    assert torch.equal(second[:, 0].long(), first)
    return first, second


def test_levelling_loses_no_row_and_moves_only_the_surplus():
    lengths = [7, 0, 2, 6]
    parts = [first.tolist() for first, _ in on_ranks(4, level, lengths)]
    assert sorted(map(len, parts)) == [3, 4, 4, 4]
    assert sorted(row for part in parts for row in part) == sorted(
        100 * rank + i for rank, n in enumerate(lengths) for i in range(n)
    )
    assert parts[2][:2] == [200, 201]
