"""The few collectives that variational Monte Carlo needs; every one is the identity on a single process.

Complex tensors travel as pairs of reals: NCCL has no complex type.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch import distributed as dist


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
    dist.all_reduce(buffer)
    return _as_original(buffer, value)


def all_reduce_max(value: Tensor) -> Tensor:
    """Elementwise maximum of a real ``value`` over all ranks; the argument is left untouched."""
    if world_size() == 1:
        return value
    buffer = value.detach().clone().contiguous()
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
    dist.all_gather(parts, padded)
    whole = torch.cat([part[:length] for part, length in zip(parts, lengths, strict=True)])
    return _as_original(whole, rows), sum(lengths[: rank()])


def gather_lengths(length: int, device: torch.device) -> list[int]:
    """Every rank's ``length``, in rank order."""
    if world_size() == 1:
        return [length]
    mine = torch.tensor([length], dtype=torch.int64, device=device)
    parts = [torch.empty_like(mine) for _ in range(world_size())]
    dist.all_gather(parts, mine)
    return [int(part) for part in parts]


def _initialised() -> bool:
    return dist.is_available() and dist.is_initialized()


def _as_real(value: Tensor) -> Tensor:
    return torch.view_as_real(value.resolve_conj()) if value.is_complex() else value


def _as_original(buffer: Tensor, like: Tensor) -> Tensor:
    return torch.view_as_complex(buffer) if like.is_complex() else buffer
