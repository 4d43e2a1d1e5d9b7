"""Final figures of a wave function: energies from the sampled set, each said to be variational or not."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from nnqs_lightning.hamiltonian import MolecularHamiltonian
from nnqs_lightning.vmc.final_figures.extrapolation import Line, zero_extrapolation
from nnqs_lightning.vmc.final_figures.spin import spin_squared
from nnqs_lightning.vmc.final_figures.states import ground_state, outside
from nnqs_lightning.vmc.pretrain import StateVector


@dataclass(frozen=True)
class Row:
    """One energy."""

    key: str
    label: str
    energy: float
    """Hartree."""
    error: float | None
    """Statistical or fitting error in hartree; None where none is known."""
    variational: bool
    """Whether it cannot lie below the ground state, but for its error."""
    note: str


@dataclass(frozen=True)
class Truncation:
    """Lowest state in the heaviest determinants of the set, and what lies outside."""

    n_determinants: int
    energy: float
    """Hartree."""
    variance: float
    """Hartree²."""
    second_order: float
    """Epstein–Nesbet correction, hartree."""


@dataclass(frozen=True)
class SetFigures:
    """What the sampled set says."""

    rows: list[Row]
    n_sampled: int
    s2_network: float
    """⟨S²⟩ of ψ in the sampled set."""
    s2_subspace: float
    """⟨S²⟩ of the lowest state in the set."""
    overlap: float
    """|⟨ψ|lowest state⟩|² within the set."""
    truncations: list[Truncation]
    """Smallest first."""
    variance_line: Line | None
    correction_line: Line | None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Limits:
    """How much the figures may cost."""

    max_determinants: int = 20_000
    """The heaviest so many determinants of a larger set are diagonalised."""
    exact_couplings: int = 20_000_000
    """Determinants × connected states up to which nothing is left out of the second-order correction."""
    screening: float = 1e-6
    """Couplings |H ψ| in hartree that are left out beyond."""
    truncations: int = 4
    """States to extrapolate from: the set, its heavier half, quarter, …"""

    def screening_of(self, n_couplings: int) -> float:
        """What a correction over so many couplings leaves out: nothing, or those up to ``screening``."""
        return 0.0 if n_couplings <= self.exact_couplings else self.screening


def set_figures(hamiltonian: MolecularHamiltonian, determinants: Tensor, log_psi: Tensor, limits: Limits) -> SetFigures:
    """Energies and spin from the sampled set.

    Args:
        hamiltonian: H.
        determinants: int64 [N, 2, W], distinct.
        log_psi: complex128 [N].
        limits: on the cost.
    """
    order = log_psi.real.cpu().argsort(descending=True, stable=True)
    determinants, log_psi = determinants.cpu()[order], log_psi.cpu()[order]
    determinants, log_psi = determinants[log_psi.real > -torch.inf], log_psi[log_psi.real > -torch.inf]
    psi = torch.exp(log_psi - log_psi.real.max())
    psi = psi / psi.norm()
    rayleigh = (psi.abs().square() * hamiltonian.local_energies(determinants, log_psi)).sum().real
    truncations, state = _truncations(hamiltonian, determinants, psi, limits)
    size = len(state.determinants)
    lines = (
        zero_extrapolation([t.variance for t in truncations], [t.energy for t in truncations]),
        zero_extrapolation([-t.second_order for t in truncations], [t.energy for t in truncations]),
    )
    heaviest = "" if size == len(determinants) else f"the heaviest {size:,} of "
    screening = limits.screening_of(size * hamiltonian.n_connected)
    rows = [
        Row("rayleigh", "ψ in the sampled set", float(rayleigh), 0.0, True, f"{len(determinants):,} determinants"),
        Row("subspace", "lowest state in it", state.energy, 0.0, True, f"{heaviest}{len(determinants):,} determinants"),
        Row(
            "second_order",
            "… with second order (EN)",
            state.energy + truncations[-1].second_order,
            None,
            False,
            f"screened at {screening:g} Ha" if screening else "all couplings",
        ),
        *_extrapolated(truncations, lines),
    ]
    return SetFigures(
        rows=rows,
        n_sampled=len(determinants),
        s2_network=spin_squared(hamiltonian.sector, determinants, psi),
        s2_subspace=spin_squared(hamiltonian.sector, state.determinants, state.coefficients),
        overlap=float(torch.vdot(psi[:size], state.coefficients).abs().square()),
        truncations=truncations,
        variance_line=lines[0],
        correction_line=lines[1],
    )


def _truncations(
    hamiltonian: MolecularHamiltonian, determinants: Tensor, psi: Tensor, limits: Limits
) -> tuple[list[Truncation], StateVector]:
    """States in ever larger heads of the set, the largest of them last and given whole."""
    largest = min(len(determinants), limits.max_determinants)
    sizes = sorted({max(1, largest >> halvings) for halvings in range(max(1, limits.truncations))})
    # One screening for all of them: they lie on one line.
    screening = limits.screening_of(largest * hamiltonian.n_connected)
    found = []
    for size in sizes:
        state = ground_state(hamiltonian, determinants[:size], psi[:size])
        rest = outside(hamiltonian, state, screening)
        found.append(Truncation(size, state.energy, rest.variance, rest.second_order))
    return found, state


def _extrapolated(truncations: list[Truncation], lines: tuple[Line | None, Line | None]) -> list[Row]:
    note = "line through " + ", ".join(f"{t.n_determinants:,}" for t in truncations) + " determinants"
    names = [("zero_variance", "extrapolated to no variance"), ("zero_correction", "extrapolated to no correction")]
    return [
        Row(key, label, line.intercept, line.error, False, note if line.slope else "an eigenstate already")
        for (key, label), line in zip(names, lines, strict=True)
        if line is not None
    ]
