"""What a set of determinants can give: the lowest state within it and what lies outside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nnqs_lightning.hamiltonian import MolecularHamiltonian
from nnqs_lightning.vmc.pretrain import DENSE_SIZE, SMALLEST_GAP, StateVector, first_order_amplitudes, lowest_state

TOLERANCE = 1e-10
"""Hartree, of a Davidson iteration."""
MAX_ITERATIONS = 200


def ground_state(hamiltonian: MolecularHamiltonian, determinants: Tensor, guess: Tensor) -> StateVector:
    """Lowest state of H within a set of distinct determinants.

    Small sets are diagonalised whole; in others the Davidson iteration of PySCF starts from ``guess`` and never stores
    the matrix. Its energy is a Rayleigh quotient, so an unfinished iteration still gives an upper bound.

    Args:
        hamiltonian: H.
        determinants: int64 [N, 2, W] in host memory.
        guess: complex128 [N], an approximate state.
    """
    if len(determinants) <= DENSE_SIZE:
        return lowest_state(hamiltonian, determinants)
    from pyscf import lib

    subspace = hamiltonian.subspace(determinants, np.arange(len(determinants)))
    strategy = subspace.work().cheapest()

    def apply(vector: NDArray[np.float64]) -> NDArray[np.float64]:
        return subspace.contract(vector.astype(np.complex128), strategy).real

    diagonal = hamiltonian.diagonal(determinants).numpy()
    energy, vector = lib.davidson(
        apply, _start(guess, diagonal), diagonal, tol=TOLERANCE, max_cycle=MAX_ITERATIONS, max_space=20, verbose=0
    )
    vector = vector * np.sign(vector[np.argmax(np.abs(vector))])
    return StateVector(determinants, torch.from_numpy(vector).to(torch.complex128), float(energy))


def _start(guess: Tensor, diagonal: NDArray[np.float64]) -> NDArray[np.float64]:
    """The guess made real, with a little of every symmetry: an iteration never leaves that of its start."""
    largest = guess[guess.abs().argmax()]
    real: Any = (guess * largest.conj() / largest.abs()).real.numpy()
    noise = np.random.default_rng(0).normal(size=len(diagonal)) / (diagonal - diagonal.min() + 0.3) ** 3
    return real / np.linalg.norm(real) + 1e-3 * noise / np.linalg.norm(noise)


@dataclass(frozen=True)
class Outside:
    """What H couples to an eigenstate within a set, summed over the determinants D outside."""

    variance: float
    """⟨H²⟩ − ⟨H⟩² = Σ |⟨D|H|ψ⟩|² in hartree²: within the set, an eigenstate has none."""
    second_order: float
    """Epstein–Nesbet correction Σ |⟨D|H|ψ⟩|² / (E − H_DD) in hartree."""
    n_determinants: int


def outside(hamiltonian: MolecularHamiltonian, state: StateVector, screening: float) -> Outside:
    """Sums over everything that H reaches from a state; couplings |H_DD' ψ_D'| up to ``screening`` are left out."""
    determinants, amplitudes = first_order_amplitudes(hamiltonian, state, screening)
    gap = (state.energy - hamiltonian.diagonal(determinants)).clamp(max=-SMALLEST_GAP)
    squares = amplitudes.abs().square()
    return Outside(
        variance=float((squares * gap.square()).sum()),
        second_order=float((squares * gap).sum()),
        n_determinants=len(determinants),
    )
