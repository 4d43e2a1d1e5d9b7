"""Collectives on ranks of unequal length: right results, arguments untouched, traffic counted."""

from __future__ import annotations

import socket
from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch import multiprocessing

from nnqs_lightning import distributed

LENGTHS = [3, 0, 5]


def rows_of(rank: int) -> torch.Tensor:
    """Complex rows, of which rank 1 has none."""
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(LENGTHS[rank], 2, dtype=torch.complex128, generator=generator)


def on_rank(rank: int, port: int, results: Any) -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=len(LENGTHS))
    rows = rows_of(rank)
    total = rows.sum(0)
    figures: dict[str, Any] = {"rows": distributed.all_gather_rows(rows), "sum": distributed.all_reduce_sum(total)}
    figures["untouched"] = torch.equal(total, rows.sum(0))
    figures["max"] = distributed.all_reduce_max(torch.tensor([rank, -rank]))
    figures["lengths"] = distributed.gather_lengths(LENGTHS[rank], torch.device("cpu"))
    before = distributed.traffic.received_bytes
    distributed.all_reduce_sum(torch.zeros(10, dtype=torch.complex128))
    figures["sum_bytes"] = distributed.traffic.received_bytes - before
    before = distributed.traffic.received_bytes
    distributed.all_gather_rows(rows)
    figures["gather_bytes"] = distributed.traffic.received_bytes - before
    figures["seconds"] = distributed.traffic.seconds
    results[rank] = figures
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with multiprocessing.Manager() as manager:
        results = manager.dict()
        multiprocessing.spawn(on_rank, args=(port, results), nprocs=len(LENGTHS))
        return [results[rank] for rank in range(len(LENGTHS))]


def test_rows_of_all_ranks_come_in_rank_order(ranks: list[dict[str, Any]]) -> None:
    whole = torch.cat([rows_of(rank) for rank in range(len(LENGTHS))])
    for rank, figures in enumerate(ranks):
        gathered, offset = figures["rows"]
        assert torch.equal(gathered, whole)
        assert offset == sum(LENGTHS[:rank])
        assert figures["lengths"] == LENGTHS


def test_sums_and_maxima_are_over_all_ranks(ranks: list[dict[str, Any]]) -> None:
    whole = sum(rows_of(rank).sum(0) for rank in range(len(LENGTHS)))
    for figures in ranks:
        torch.testing.assert_close(figures["sum"], whole, rtol=0, atol=1e-14)
        assert figures["untouched"]
        assert figures["max"].tolist() == [2, 0]


def test_received_bytes_are_counted(ranks: list[dict[str, Any]]) -> None:
    others = len(LENGTHS) - 1
    for figures in ranks:
        assert figures["sum_bytes"] == 10 * 16
        # One length from each other rank, and rows padded to the longest.
        assert figures["gather_bytes"] == others * (8 + max(LENGTHS) * 2 * 16)
        assert figures["seconds"] > 0


def test_one_process_needs_no_group_and_sends_nothing() -> None:
    before = distributed.traffic.received_bytes
    rows = rows_of(0)
    gathered, offset = distributed.all_gather_rows(rows)
    assert torch.equal(gathered, rows)
    assert offset == 0
    assert torch.equal(distributed.all_reduce_sum(rows), rows)
    assert distributed.gather_lengths(7, torch.device("cpu")) == [7]
    assert distributed.traffic.received_bytes == before
    assert distributed.world_size() == 1
