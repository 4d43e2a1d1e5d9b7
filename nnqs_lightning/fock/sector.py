"""The particle-number sector in which a state lives."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from math import comb

import torch
from torch import Tensor

from nnqs_lightning.errors import UserError
from nnqs_lightning.fock.determinant import pack
from nnqs_lightning.fock.spin_flip import is_open_shell, is_representative


@dataclass(frozen=True)
class Sector:
    """All determinants with ``n_alpha`` and ``n_beta`` electrons in ``n_orb`` spatial orbitals.

    With a ``spin_parity``, their combinations of that symmetry under spin flip, each named by its representative
    determinant: see :mod:`nnqs_lightning.fock.spin_flip`.

    Raises:
        UserError: an electron count is negative or does not fit into the orbitals, or the spin parity does not exist.
    """

    n_orb: int
    """Number of spatial orbitals."""
    n_alpha: int
    """Number of spin-up electrons."""
    n_beta: int
    """Number of spin-down electrons."""
    spin_parity: int = 0
    """Symmetry under spin flip: 1 for even S, −1 for odd S, 0 for none."""

    def __post_init__(self) -> None:
        if self.n_orb < 1:
            raise UserError(f"n_orb is {self.n_orb}: a sector needs at least one orbital")
        for name in ("n_alpha", "n_beta"):
            count = getattr(self, name)
            if not 0 <= count <= self.n_orb:
                raise UserError(
                    f"{name} is {count}, expected 0 … {self.n_orb} (n_orb): "
                    "change the charge, the spin or the active space of model.system"
                )
        if self.spin_parity and self.n_alpha != self.n_beta:
            raise UserError(
                f"{self.n_alpha} α and {self.n_beta} β electrons have no symmetry under spin flip, expected equal "
                "numbers: set model.ansatz.spin_flip to null or change model.system.spin"
            )
        if self.size == 0:
            raise UserError(
                f"{self.n_alpha} α and {self.n_beta} β electrons in {self.n_orb} orbitals have no state of odd S: "
                "change model.ansatz.spin_flip"
            )

    @property
    def spin(self) -> int:
        """2S_z = n_alpha − n_beta."""
        return self.n_alpha - self.n_beta

    @property
    def size(self) -> int:
        """Number of determinants, or of their combinations."""
        n_strings = comb(self.n_orb, self.n_alpha)
        if self.spin_parity:
            return n_strings * (n_strings + self.spin_parity) // 2
        return n_strings * comb(self.n_orb, self.n_beta)

    def determinants(self) -> Tensor:
        """Every determinant, int64 [size, 2, W]; β runs fastest, strings in lexicographic order of orbital lists."""
        alpha = _occupations(self.n_orb, self.n_alpha)
        beta = _occupations(self.n_orb, self.n_beta)
        pairs = torch.stack(
            [alpha.repeat_interleave(len(beta), dim=0), beta.repeat(len(alpha), 1)],
            dim=-1,
        )
        determinants = pack(pairs)
        if not self.spin_parity:
            return determinants
        named = is_representative(determinants)
        return determinants[named if self.spin_parity == 1 else named & is_open_shell(determinants)]

    def aufbau(self) -> Tensor:
        """The determinant that fills the lowest orbitals (Hartree–Fock in canonical order), int64 [1, 2, W].

        Where S is odd, closed shells do not occur: the highest α electron is one orbital higher.
        """
        occupation = torch.zeros((1, self.n_orb, 2), dtype=torch.int64)
        occupation[0, : self.n_alpha, 0] = 1
        occupation[0, : self.n_beta, 1] = 1
        if self.spin_parity == -1:
            occupation[0, self.n_alpha - 1 : self.n_alpha + 1, 0] = torch.tensor([0, 1])
        return pack(occupation)


def _occupations(n_orb: int, n_electrons: int) -> Tensor:
    chosen = torch.tensor(list(combinations(range(n_orb), n_electrons)), dtype=torch.int64)
    strings = torch.zeros((len(chosen), n_orb), dtype=torch.int64)
    return strings.scatter_(1, chosen, 1) if n_electrons else strings
