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


def test_a_heap_is_tidied_when_memory_has_grown_by_the_slack(monkeypatch: pytest.MonkeyPatch) -> None:
    resident, trims = [100], []
    monkeypatch.setattr(memory.Heap, "_resident", lambda self: resident[0])
    heap = memory.Heap(slack=50)
    monkeypatch.setattr(heap, "_trim", lambda pad: trims.append(resident[0]) or resident.__setitem__(0, 120))
    for size in (150, 151, 165, 171):
        resident[0] = size
        heap.tidy()
    assert trims == [151, 171]


def test_holes_in_the_heap_go_back_to_the_system() -> None:
    if memory.Heap(0)._trim is None:
        pytest.skip("the C library cannot give memory back")
    memory.Heap(-1).tidy()  # whatever earlier tests have left free
    heap = memory.Heap(slack=2**24)
    floor = heap._resident()
    small = [torch.ones(2**12) for _ in range(2**12)]  # 64 MiB in pieces that are never mapped by themselves
    grown = heap._resident()
    assert grown > floor + 2**25
    del small[1::2]
    heap.tidy()
    assert heap._resident() < grown - 2**23
    assert sum(float(tensor.sum()) for tensor in small) == 2**23
