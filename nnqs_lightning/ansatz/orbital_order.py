"""In which order orbitals are decoded: the type behind the config key ``model.ansatz.orbital_order``.

The order names tokens only. Determinants keep the orbital numbers of the integrals, so no sign depends on it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from nnqs_lightning.ansatz.orbital_context import orbital_pairs
from nnqs_lightning.ansatz.orbital_physics import orbital_energies
from nnqs_lightning.chem.integrals import MolecularIntegrals
from nnqs_lightning.errors import UserError
from nnqs_lightning.nn.positional import fiedler_vector
from nnqs_lightning.nn.positional.orbital_pairs import PairSource

IntArray = NDArray[np.int64]


class OrbitalOrder(ABC):
    """Decides which orbital is decoded i-th."""

    def __init__(self, integrals: MolecularIntegrals) -> None:
        self.integrals = integrals

    @abstractmethod
    def permutation(self) -> IntArray:
        """[n_orb]: entry i is the orbital decoded i-th."""


class AsGiven(OrbitalOrder):
    """The order of the integrals: canonical orbitals from the lowest on."""

    def permutation(self) -> IntArray:
        """0, 1, …"""
        return np.arange(self.integrals.n_orb)


class Reversed(OrbitalOrder):
    """The last orbital of the integrals first: virtual before occupied (Barrett et al. 2022, 2109.12606)."""

    def permutation(self) -> IntArray:
        """n_orb − 1, n_orb − 2, …"""
        return np.arange(self.integrals.n_orb)[::-1].copy()


class EnergyOrder(OrbitalOrder):
    """By orbital energy, whatever the list of orbitals says; ties keep the order of the list.

    Args:
        integrals: what is decoded.
        descending: the highest orbital first.
    """

    def __init__(self, integrals: MolecularIntegrals, descending: bool = False) -> None:
        super().__init__(integrals)
        self.descending = descending

    def permutation(self) -> IntArray:
        """Sorted by mo_energy, or by the diagonal of the Fock matrix where the source gives no energies."""
        energies = orbital_energies(self.integrals)
        return np.argsort(-energies if self.descending else energies, kind="stable")


class FiedlerOrder(OrbitalOrder):
    """Sorted along the Fiedler vector of orbital couplings, so that strong pairs are near.

    That is the second eigenvector of the graph Laplacian of K_pq (Barcza et al. 2011, Phys. Rev. A 83, 012508).

    Args:
        integrals: what is decoded.
        source: which orbital pairs are the couplings.

    Raises:
        UserError: the couplings vanish, as exchange does on a lattice.
    """

    def __init__(self, integrals: MolecularIntegrals, source: PairSource = "exchange") -> None:
        super().__init__(integrals)
        self.source = source

    def permutation(self) -> IntArray:
        """Ascending components; the first orbital of the list is in the negative half."""
        as_given = torch.arange(self.integrals.n_orb)
        couplings = orbital_pairs(self.integrals, as_given)
        return np.argsort(fiedler_vector(couplings[self.source]).numpy(), kind="stable")


class ExplicitOrder(OrbitalOrder):
    """A permutation from the configuration.

    Args:
        integrals: what is decoded.
        permutation: orbital (from 0) that is decoded first, second, …

    Raises:
        UserError: not a permutation of the orbitals.
    """

    def __init__(self, integrals: MolecularIntegrals, permutation: list[int]) -> None:
        super().__init__(integrals)
        if sorted(permutation) != list(range(integrals.n_orb)):
            raise UserError(
                f"permutation is {permutation}, expected each of 0 … {integrals.n_orb - 1} once: "
                "change model.ansatz.orbital_order.permutation"
            )
        self._permutation = np.array(permutation)

    def permutation(self) -> IntArray:
        """As given."""
        return self._permutation


class RandomOrder(OrbitalOrder):
    """A random permutation.

    Args:
        integrals: what is decoded.
        seed: its seed, independent of the seed of the run.
    """

    def __init__(self, integrals: MolecularIntegrals, seed: int = 0) -> None:
        super().__init__(integrals)
        self.seed = seed

    def permutation(self) -> IntArray:
        """The same for the same seed and number of orbitals."""
        return np.random.default_rng(self.seed).permutation(self.integrals.n_orb)


OrbitalOrderFactory = Callable[[MolecularIntegrals], OrbitalOrder]
"""What the config key holds: a class whose first argument is the integrals."""
