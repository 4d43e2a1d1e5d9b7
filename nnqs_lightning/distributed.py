"""The few collectives that variational Monte Carlo needs; every one is the identity on a single process.

Complex tensors travel as pairs of reals: NCCL has no complex type.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch import distributed as dist


@dataclass
class Traffic:
    """What the collectives of this module have cost this process so far."""

    received_bytes: int = 0
    """Bytes that other ranks sent to this one: the length of a sum once, of every other rank's rows."""
    seconds: float = 0.0
    """Time in collectives, waiting for slower ranks included."""
    calls: int = 0
    """Number of collectives."""


traffic = Traffic()


def rank() -> int:
    """This process's rank, 0 without a process group."""
    return dist.get_rank() if _initialised() else 0


def world_size() -> int:
    """Number of processes, 1 without a process group."""
    return dist.get_world_size() if _initialised() else 1


def all_reduce_sum(value: Tensor) -> Tensor:
    """Sum of ``value`` (same shape on all ranks) over all ranks; the argument is left untouched."""
    if world_size() == 1:
        return value
    buffer = _as_real(value.detach()).clone().contiguous()
    with _counted(buffer.nbytes):
        dist.all_reduce(buffer)
    return _as_original(buffer, value)


def all_reduce_max(value: Tensor) -> Tensor:
    """Elementwise maximum of a real ``value`` over all ranks; the argument is left untouched."""
    if world_size() == 1:
        return value
    buffer = value.detach().clone().contiguous()
    with _counted(buffer.nbytes):
        dist.all_reduce(buffer, op=dist.ReduceOp.MAX)
    return buffer


def all_gather_rows(rows: Tensor) -> tuple[Tensor, int]:
    """Concatenate ``rows`` of every rank along dimension 0, in rank order.

    Args:
        rows: [n, ...] on each rank; n may differ between ranks and may be zero.

    Returns:
        The [Σ n, ...] tensor and the offset at which this rank's own rows begin.
    """
    if world_size() == 1:
        return rows, 0
    lengths = gather_lengths(rows.shape[0], rows.device)
    local = _as_real(rows.detach()).contiguous()
    padded = local.new_zeros((max(lengths), *local.shape[1:]))
    padded[: local.shape[0]] = local
    parts = [torch.empty_like(padded) for _ in lengths]
    with _counted(padded.nbytes * (len(parts) - 1)):
        dist.all_gather(parts, padded)
    whole = torch.cat([part[:length] for part, length in zip(parts, lengths, strict=True)])
    return _as_original(whole, rows), sum(lengths[: rank()])


def level_rows(rows: list[Tensor]) -> list[Tensor]:
    """Move rows between ranks until every rank holds as many as the others, give or take one.

    Args:
        rows: tensors of this rank with the same number of rows, which may differ between ranks.

    Returns:
        The tensors with rows received from others at the end. Only a surplus travels, straight to where it is lacking.
    """
    if world_size() == 1:
        return rows
    lengths = gather_lengths(rows[0].shape[0], rows[0].device)
    transfers = _surplus_transfers(lengths)
    sent, received = transfers[rank()].tolist(), transfers[:, rank()].tolist()
    kept = lengths[rank()] - sum(sent)
    return [torch.cat([tensor[:kept], _all_to_all(tensor[kept:], sent, received)]) for tensor in rows]


def _surplus_transfers(lengths: list[int]) -> Tensor:
    """Rows that rank i sends to rank j, int64 [ranks, ranks], the same on all ranks."""
    total, n = sum(lengths), len(lengths)
    # Surplus rows lie end to end on one line and vacant places on another: what overlaps travels.
    wanted = [total * (i + 1) // n - total * i // n for i in range(n)]
    excess = torch.tensor(lengths) - torch.tensor(wanted)
    surplus, vacant = excess.clamp(min=0).cumsum(0), (-excess).clamp(min=0).cumsum(0)
    stop = torch.minimum(surplus[:, None], vacant[None, :])
    start = torch.maximum((surplus - excess.clamp(min=0))[:, None], (vacant - (-excess).clamp(min=0))[None, :])
    return (stop - start).clamp(min=0)


def _all_to_all(rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
    buffer = rows.new_empty((sum(received), *rows.shape[1:]))
    with _counted(buffer.nbytes):
        dist.all_to_all_single(buffer, rows.contiguous(), received, sent)
    return buffer


def gather_lengths(length: int, device: torch.device) -> list[int]:
    """Every rank's ``length``, in rank order."""
    if world_size() == 1:
        return [length]
    mine = torch.tensor([length], dtype=torch.int64, device=device)
    parts = [torch.empty_like(mine) for _ in range(world_size())]
    with _counted(mine.nbytes * (len(parts) - 1)):
        dist.all_gather(parts, mine)
    return [int(part) for part in parts]


@contextmanager
def _counted(received_bytes: int) -> Iterator[None]:
    started = time.perf_counter()
    yield
    traffic.seconds += time.perf_counter() - started
    traffic.received_bytes += received_bytes
    traffic.calls += 1


def _initialised() -> bool:
    return dist.is_available() and dist.is_initialized()


def _as_real(value: Tensor) -> Tensor:
    return torch.view_as_real(value.resolve_conj()) if value.is_complex() else value


def _as_original(buffer: Tensor, like: Tensor) -> Tensor:
    return torch.view_as_complex(buffer) if like.is_complex() else buffer
