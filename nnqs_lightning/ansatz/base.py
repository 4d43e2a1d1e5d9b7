"""The contract of a wave function."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from nnqs_lightning.chem.integrals import MolecularIntegrals
from nnqs_lightning.fock import Sector


class Ansatz(nn.Module, ABC):
    """ψ(D) over the determinants of one sector.

    Where the sector has a spin parity, ψ(D) is the amplitude of the combination that D represents (see
    :mod:`nnqs_lightning.fock.spin_flip`), and vanishes where D represents none. Energies then need the Hamiltonian on
    the same sector: :func:`nnqs_lightning.hamiltonian.hamiltonian_on`.
    """

    sector: Sector

    @abstractmethod
    def log_psi(self, determinants: Tensor) -> Tensor:
        """log ψ = log |ψ| + iφ, differentiable.

        Args:
            determinants: int64 [N, 2, W].

        Returns:
            complex128 [N]; the real part is −inf where ψ vanishes by symmetry.
        """

    @torch.no_grad()
    def evaluate(self, determinants: Tensor, chunk_size: int) -> Tensor:
        """:meth:`log_psi` without gradient, ``chunk_size`` determinants at a time."""
        return torch.cat([self.log_psi(rows) for rows in determinants.split(chunk_size)])

    def forward(self, determinants: Tensor) -> Tensor:
        """Same as :meth:`log_psi`, so that wrappers (DDP, DeepSpeed) see one entry."""
        return self.log_psi(determinants)


class AutoregressiveAnsatz(Ansatz):
    """|ψ(D)|² = Π_i p(t_i | t_<i) over pair tokens t_i = α + 2β of the i-th orbital in decoding order.

    Samplers use only :meth:`begin`, :meth:`along`, :meth:`log_conditionals`, :meth:`advance`, :meth:`join`,
    :meth:`to_determinants` and :meth:`phase`; the decoding state is opaque to them but for ``len(state)``.
    """

    @property
    def n_steps(self) -> int:
        """Number of tokens of a determinant."""
        return self.sector.n_orb

    @abstractmethod
    def conditionals(self, tokens: Tensor) -> Tensor:
        """log p(t_i = k | t_<i) for every position: int64 [N, L] → float64 [N, L, 4]; −inf where forbidden."""

    @abstractmethod
    def phase(self, determinants: Tensor) -> Tensor:
        """φ(D) in radians, float64 [N]."""

    @abstractmethod
    def to_tokens(self, determinants: Tensor) -> Tensor:
        """int64 [N, 2, W] → tokens in decoding order, int64 [N, L]."""

    @abstractmethod
    def to_determinants(self, tokens: Tensor) -> Tensor:
        """Inverse of :meth:`to_tokens`."""

    @abstractmethod
    def begin(self) -> Any:
        """A decoding state of one row, the empty prefix."""

    @abstractmethod
    def log_conditionals(self, state: Any) -> Tensor:
        """log p(next token | prefix) of every row of ``state``, float64 [rows, 4]; −inf where forbidden."""

    @abstractmethod
    def advance(self, state: Any, parents: Tensor, tokens: Tensor) -> Any:
        """The state whose row m is row ``parents[m]`` of ``state`` with ``tokens[m]`` appended (both int64 [M]).

        ``state`` itself stays valid, so a caller may expand its rows in pieces.
        """

    def along(self, state: Any, tokens: Tensor) -> list[Any]:
        """States of one row each, the prefixes of ``tokens`` (int64 [L]) from the empty one to that of L − 1 tokens.

        ``state`` is that of the empty prefix. What ``tokens`` hold behind a prefix changes nothing in its state.
        """
        row = torch.zeros(1, dtype=torch.int64, device=tokens.device)
        states = [state]
        for position in range(len(tokens) - 1):
            states.append(self.advance(states[-1], row, tokens[position : position + 1]))
        return states

    def join(self, states: list[Any]) -> Any | None:
        """One state with the rows of ``states``, of prefixes of one length, one after the other.

        None where that cannot be had: samplers then decode what they could have decoded together one by one.
        """
        return None

    def cache_bytes(self, depth: int) -> int:
        """Bytes by which the decoding state of one more row of ``depth`` tokens grows; samplers bound their sum."""
        return 0


AnsatzFactory = Callable[[MolecularIntegrals], Ansatz]
"""What the config key ``model.ansatz`` holds: a class whose first argument is the integrals."""
