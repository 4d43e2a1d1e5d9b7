"""What a walk down the decoding tree finds, and the sample that it makes.

A leaf takes 24 bytes up to 31 orbitals, the determinant that it becomes 48 in a sample; no step needs more than 56.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from nnqs_lightning import distributed
from nnqs_lightning.ansatz.base import AutoregressiveAnsatz
from nnqs_lightning.fock import n_words
from nnqs_lightning.sampling import prefix

FIRST_BLOCK = 2**22
"""Leaves for which there is room at first: 32 MiB a column, which the C library maps outside of its heap. Pages are
taken when they are written to, and no holes are left where decoding has had its memory."""


@dataclass
class Leaves:
    """Determinants as whole sequences of tokens."""

    keys: Tensor
    """int64 [N, width]: see :mod:`nnqs_lightning.sampling.prefix`."""
    values: Tensor
    """[N]: what the sampler carries down the tree: walkers (int64) or perturbed log probabilities (float64)."""
    log_p: Tensor
    """float64 [N]"""

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, rows: slice | Tensor) -> Leaves:
        return Leaves(*(column[rows] for column in self.columns()))

    def columns(self) -> list[Tensor]:
        """All tensors."""
        return [getattr(self, field.name) for field in fields(self)]

    def sort(self) -> None:
        """Put them into lexicographic order of tokens: an order that no traversal changes."""
        order = prefix.in_order(self.keys)
        # One by one: the unsorted columns are given back as early as that.
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name)[order])


def concatenate(parts: list[Leaves]) -> Leaves:
    """All in one."""
    return Leaves(*(torch.cat(columns) for columns in zip(*(part.columns() for part in parts), strict=True)))


def collect(parts: Iterable[Leaves]) -> Leaves:
    """:func:`concatenate` for many small parts, copied into large blocks at once: small tensors that live on among
    large ones that come and go would leave the heap full of holes."""
    blocks: list[Leaves] = []
    length = room = 0
    part = None
    for part in parts:
        while len(part):
            if room == 0:
                room = max(length, FIRST_BLOCK)
                blocks.append(Leaves(*(column.new_empty((room, *column.shape[1:])) for column in part.columns())))
            fitting, part = part[:room], part[room:]
            start = len(blocks[-1]) - room
            for column, values in zip(blocks[-1].columns(), fitting.columns(), strict=True):
                column[start : start + len(fitting)] = values
            length, room = length + len(fitting), room - len(fitting)
    if not blocks:
        assert part is not None
        return part
    blocks[-1] = blocks[-1][: len(blocks[-1]) - room]
    # Column by column, so that only one of them is held twice.
    columns = [[block.columns()[i] for block in blocks] for i in range(len(fields(Leaves)))]
    blocks.clear()
    return Leaves(*(torch.cat(columns.pop(0)) for _ in fields(Leaves)))


def level(leaves: Leaves) -> Leaves:
    """As many leaves on each rank as on the others; collective."""
    return Leaves(*distributed.level_rows(leaves.columns()))


def states(ansatz: AutoregressiveAnsatz, leaves: Leaves, rows: int) -> tuple[Tensor, Tensor]:
    """Determinants int64 [N, 2, W] and log ψ complex128 [N], evaluated ``rows`` at a time."""
    device, n_orb = leaves.keys.device, ansatz.sector.n_orb
    determinants = torch.empty((len(leaves), 2, n_words(n_orb)), dtype=torch.int64, device=device)
    log_psi = torch.empty(len(leaves), dtype=torch.complex128, device=device)
    with torch.no_grad():
        for start in range(0, len(leaves), rows):
            part = slice(start, start + rows)
            determinants[part] = ansatz.to_determinants(prefix.unpack(leaves.keys[part], n_orb).long())
            log_psi[part] = torch.complex(0.5 * leaves.log_p[part], ansatz.phase(determinants[part]))
    return determinants, log_psi
