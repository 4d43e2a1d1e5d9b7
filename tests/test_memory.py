"""A shortage of memory changes the size of the pieces and nothing else."""

from __future__ import annotations

import pytest
import torch

from nnqs_lightning import memory


def with_room_for(rows: int, error: Exception = MemoryError()):  # noqa: B008
    def square(part: torch.Tensor) -> torch.Tensor:
        sizes.append(len(part))
        if len(part) > rows:
            raise error
        return part**2

    sizes: list[int] = []
    return square, sizes


SHORTAGES = [
    MemoryError(),
    torch.OutOfMemoryError("CUDA out of memory"),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
]


@pytest.mark.parametrize("error", SHORTAGES, ids=lambda error: type(error).__name__)
def test_rows_are_all_visited_once_in_order_in_smaller_pieces(error: Exception) -> None:
    square, sizes = with_room_for(3, error)
    rows = torch.arange(20.0)
    memory.take_shortages()
    assert torch.equal(torch.cat(memory.map_rows(square, rows, 16)), rows**2)
    assert sizes == [16, 8, 4] + [2] * 10
    assert memory.take_shortages() == 3
    assert memory.take_shortages() == 0


def test_no_rows_are_no_call() -> None:
    assert memory.map_rows(with_room_for(0)[0], torch.zeros(0), 4) == []


def test_what_does_not_fit_even_alone_is_raised() -> None:
    with pytest.raises(MemoryError):
        memory.map_rows(with_room_for(0)[0], torch.arange(4.0), 4)


def test_another_error_is_not_taken_for_a_shortage() -> None:
    square, sizes = with_room_for(1, RuntimeError("shapes differ"))
    with pytest.raises(RuntimeError, match="shapes differ"):
        memory.map_rows(square, torch.arange(4.0), 4)
    assert sizes == [4]
