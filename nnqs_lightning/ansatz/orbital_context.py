"""Orbital pairs and features for positional schemes, in decoding order, computed when a scheme asks for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nnqs_lightning.ansatz.orbital_physics import levels, orbital_energies, reference_occupation
from nnqs_lightning.chem.integrals import MolecularIntegrals

ENTANGLED_DETERMINANTS = 20_000
"""Determinants of the CISD state that count for the mutual information; the cost is linear in their number."""


class _Lazy(Mapping[str, Tensor]):
    """Arrays by name, made and permuted on access."""

    def __init__(self, makers: Mapping[str, Callable[[], NDArray]], permute: Callable[[Tensor], Tensor]) -> None:
        self._makers = makers
        self._permute = permute

    def __getitem__(self, name: str) -> Tensor:
        return self._permute(torch.as_tensor(np.array(self._makers[name]())))

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


def orbital_pairs(integrals: MolecularIntegrals, order: Tensor) -> Mapping[str, Tensor]:
    """``exchange`` K_pq, ``coulomb`` J_pq, ``one_electron`` h_pq (hartree), ``mutual_information``: float64 [L, L]."""
    makers: dict[str, Callable[[], NDArray]] = {
        "exchange": lambda: integrals.exchange,
        "coulomb": lambda: integrals.coulomb,
        "one_electron": lambda: integrals.h1e,
        "mutual_information": lambda: _mutual_information(integrals),
    }
    return _Lazy(makers, lambda matrix: matrix[order][:, order])


def _mutual_information(integrals: MolecularIntegrals) -> NDArray:
    """I_pq of the CISD state."""
    from nnqs_lightning.chem.cluster import cisd_vector
    from nnqs_lightning.chem.entanglement import mutual_information

    return mutual_information(cisd_vector(integrals).truncated(ENTANGLED_DETERMINANTS))


def orbital_features(integrals: MolecularIntegrals, order: Tensor) -> Mapping[str, Tensor]:
    """Features of single orbitals, [L] or [L, k].

    ``index`` in the list of the integrals, ``energy`` and ``level`` (from the middle of the gap) in hartree,
    ``occupation`` (α, β) of the reference determinant, ``irrep`` (one-hot, where the source gives irreps), and
    whatever else the integrals carry as ``orbital_features``.
    """
    makers: dict[str, Callable[[], NDArray]] = {
        "index": lambda: np.arange(integrals.n_orb),
        "energy": lambda: orbital_energies(integrals),
        "level": lambda: levels(integrals),
        "occupation": lambda: reference_occupation(integrals),
    }
    orbsym = integrals.orbsym
    if orbsym is not None:
        makers["irrep"] = lambda: np.eye(8)[np.array(orbsym) - 1]
    for name, values in integrals.orbital_features.items():
        makers[name] = partial(np.asarray, values)
    return _Lazy(makers, lambda feature: feature[order])
