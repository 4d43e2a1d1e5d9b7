"""A wave function given by tables, whose every probability can be enumerated by hand."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nnqs_lightning.ansatz.base import AutoregressiveAnsatz
from nnqs_lightning.fock import Sector, pack, unpack


@dataclass
class Prefixes:
    """Decoding state of :class:`TableAnsatz`."""

    tokens: Tensor

    def __len__(self) -> int:
        return len(self.tokens)


class TableAnsatz(AutoregressiveAnsatz):
    """One row of random logits for each prefix; orbitals decoded from the last to the first.

    ``spread`` widens the logits; ``zero`` forbids a fraction of the tokens where another one remains.
    """

    def __init__(self, sector: Sector, *, spread: float = 1.5, zero: float = 0.0, row_bytes: int = 0) -> None:
        super().__init__()
        self.sector = sector
        self.row_bytes = row_bytes
        generator = torch.Generator().manual_seed(7)
        self.tables = [
            spread * torch.randn((4**depth, 4), generator=generator, dtype=torch.float64)
            for depth in range(sector.n_orb)
        ]
        for table in self.tables:
            table[torch.rand(table.shape, generator=generator) < zero] -= 1e4
        self.places = 4 ** torch.arange(sector.n_orb)
        self.weight = nn.Parameter(torch.randn(2 * sector.n_orb, generator=generator, dtype=torch.float64))

    def _step(self, prefixes: Tensor) -> Tensor:
        depth = prefixes.shape[1]
        left = self.sector.n_orb - depth - 1
        logits = self.tables[depth][(prefixes * self.places[:depth]).sum(1)].clone()
        for token in range(4):
            for bit, total in ((0, self.sector.n_alpha), (1, self.sector.n_beta)):
                rest = total - ((prefixes >> bit) & 1).sum(1) - ((token >> bit) & 1)
                logits[(rest < 0) | (rest > left), token] = -torch.inf
        log_p = logits.log_softmax(1)
        return log_p.masked_fill(log_p < -5e3, -torch.inf)

    def conditionals(self, tokens: Tensor) -> Tensor:
        return torch.stack([self._step(tokens[:, :depth]) for depth in range(self.n_steps)], dim=1)

    def log_psi(self, determinants: Tensor) -> Tensor:
        tokens = self.to_tokens(determinants)
        log_p = self.conditionals(tokens).gather(2, tokens.unsqueeze(2)).sum((1, 2))
        return torch.complex(0.5 * log_p, self.phase(determinants))

    def phase(self, determinants: Tensor) -> Tensor:
        return unpack(determinants, self.sector.n_orb).flatten(1).double() @ self.weight

    def to_tokens(self, determinants: Tensor) -> Tensor:
        occupation = unpack(determinants, self.sector.n_orb)
        return (occupation[:, :, 0] + 2 * occupation[:, :, 1]).flip(1)

    def to_determinants(self, tokens: Tensor) -> Tensor:
        tokens = tokens.flip(1)
        return pack(torch.stack([tokens & 1, tokens >> 1], dim=2))

    def begin(self) -> Prefixes:
        return Prefixes(torch.zeros((1, 0), dtype=torch.int64))

    def log_conditionals(self, state: Prefixes) -> Tensor:
        return self._step(state.tokens)

    def advance(self, state: Prefixes, parents: Tensor, tokens: Tensor) -> Prefixes:
        return Prefixes(torch.cat([state.tokens[parents], tokens.unsqueeze(1)], dim=1))

    def cache_bytes(self, depth: int) -> int:
        return self.row_bytes * depth
