"""States to start from: vectors of a few determinants that a wave function is fitted to before it is optimised."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from nnqs_lightning.errors import UserError
from nnqs_lightning.fock import pack, unpack
from nnqs_lightning.fock.spin_flip import expand, fold
from nnqs_lightning.hamiltonian import MolecularHamiltonian

FLOW = 1e-6
"""Couplings |H_DD' ψ_D'| in hartree that CISD does not follow to first order."""
SMALLEST_GAP = 1e-3
"""Hartree; keeps first-order amplitudes finite."""
CONNECTED_AT_ONCE = 2_000_000
LARGEST_TAIL = 2_000
"""Singles and doubles up to which CISD looks at all that they are coupled to."""
LARGEST_SEARCH = 200_000
"""Sectors whose determinants are all looked at for a start."""
LARGEST_START = 50_000
"""Singles and doubles up to which a selection begins with all of them, and so in the right state."""
DENSE_SIZE = 600
"""Matrices up to this size are diagonalised whole: it is quicker and knows no start vector."""


@dataclass(frozen=True)
class StateVector:
    """ψ on a set of determinants, zero elsewhere."""

    determinants: Tensor
    """int64 [N, 2, W], distinct."""
    coefficients: Tensor
    """complex128 [N], normalised, in the phase convention of ``fock``."""
    energy: float
    """⟨ψ|H|ψ⟩ in hartree."""


class TargetState(ABC):
    """A state that is cheap to compute: the type behind the config key ``pretraining.target``."""

    @abstractmethod
    def vector(self, hamiltonian: MolecularHamiltonian) -> StateVector:
        """The state; the same on every rank."""


class CISD(TargetState):
    """Lowest state in the space of the reference determinant, its singles and its doubles.

    With Hartree–Fock orbitals this is configuration interaction with singles and doubles. It takes the Hamiltonian
    alone, so it serves FCIDUMP files and lattices too. See :func:`reference_determinant` for where it begins.

    Args:
        max_determinants: UserError beyond so many determinants.
        first_order: append first-order amplitudes of the determinants outside, mostly triples and quadruples: few
            weigh much, but an amplitude that starts with the wrong sign has to die before it can come back. By default
            where CISD has at most 2,000 determinants.
    """

    def __init__(self, max_determinants: int = 200_000, first_order: bool | None = None) -> None:
        self.max_determinants = max_determinants
        self.first_order = first_order

    def vector(self, hamiltonian: MolecularHamiltonian) -> StateVector:
        """See :class:`TargetState`."""
        if hamiltonian.n_connected > self.max_determinants:
            raise UserError(
                f"CISD has {hamiltonian.n_connected} determinants, more than max_determinants "
                f"{self.max_determinants}: raise it or give pretraining another target"
            )
        state = lowest_state(hamiltonian, _excitations(hamiltonian, reference_determinant(hamiltonian)))
        first_order = self.first_order
        if first_order is None:
            first_order = hamiltonian.n_connected <= LARGEST_TAIL
        return with_first_order(hamiltonian, state, FLOW) if first_order else state


class SelectedCI(TargetState):
    """Lowest state in the determinants that matter most, found round by round (Tubman et al. 2016, 1603.02686).

    From CISD on, each round ranks the determinants of the set by |⟨D|ψ⟩| and those it is coupled to by
    |⟨D|H|ψ⟩ / (E − H_DD)|, and diagonalises H in the best of them, until the energy settles.

    Args:
        max_determinants: size of the set.
        threshold: couplings |H_DD' ψ_D'| in hartree below it are not followed.
        first_order: append first-order amplitudes of the determinants outside.
        settled: fall of the energy in hartree that calls for another round.
    """

    def __init__(
        self,
        max_determinants: int = 200,
        threshold: float = 1e-6,
        first_order: bool = False,
        settled: float = 1e-4,
    ) -> None:
        if max_determinants < 1 or threshold < 0 or settled <= 0:
            raise UserError(
                f"max_determinants is {max_determinants}, threshold {threshold} and settled {settled}, expected at "
                "least 1, at least 0 and a positive number: change pretraining.target"
            )
        self.max_determinants = max_determinants
        self.threshold = threshold
        self.first_order = first_order
        self.settled = settled

    def vector(self, hamiltonian: MolecularHamiltonian) -> StateVector:
        """See :class:`TargetState`."""
        state = lowest_state(hamiltonian, self._start(hamiltonian))
        while True:
            outside, amplitudes = first_order_amplitudes(hamiltonian, state, self.threshold)
            importance = torch.cat([state.coefficients, amplitudes]).abs()
            best = importance.argsort(descending=True, stable=True)[: self.max_determinants]
            before, full = state.energy, len(state.determinants) == len(best)
            state = lowest_state(hamiltonian, torch.cat([state.determinants, outside])[best])
            if full and before - state.energy < self.settled:
                break
        return with_first_order(hamiltonian, state, self.threshold) if self.first_order else state

    def _start(self, hamiltonian: MolecularHamiltonian) -> Tensor:
        """Singles and doubles and, in sectors small enough to search, the lowest ⟨D|H|D⟩: in a stretched bond the
        ground state has next to nothing in common with the reference."""
        from nnqs_lightning.fock.lookup import DeterminantTable

        start = DeterminantTable(reference_determinant(hamiltonian))
        if hamiltonian.n_connected <= LARGEST_START:
            start.insert(_excitations(hamiltonian, start.rows))
        if hamiltonian.sector.size <= LARGEST_SEARCH:
            every = _of_one_irrep(hamiltonian, hamiltonian.sector.determinants(), start.rows[:1])
            start.insert(every[hamiltonian.diagonal(every).argsort()[: self.max_determinants]])
        return start.rows


class FirstOrder(TargetState):
    """The reference determinant with its first-order Epstein–Nesbet amplitudes H_D0 / (E_0 − H_DD).

    Without diagonalisation; an MP2-like start for spaces where CISD is too large.
    """

    def vector(self, hamiltonian: MolecularHamiltonian) -> StateVector:
        """See :class:`TargetState`."""
        reference = reference_determinant(hamiltonian)
        determinants = _excitations(hamiltonian, reference)
        coupling = hamiltonian.matrix_elements(reference.expand_as(determinants).contiguous(), determinants)
        diagonal = hamiltonian.diagonal(determinants)
        start = (determinants == reference).flatten(1).all(1)
        gap = (diagonal[start] - diagonal).clamp(max=-SMALLEST_GAP)
        amplitudes = torch.where(start, 1.0, coupling / gap)
        return _state(hamiltonian, determinants, amplitudes)


class SavedState(TargetState):
    """Determinants and amplitudes that ``predict`` wrote, for the same orbitals and electrons.

    Args:
        path: the ``determinants.npz`` of a run.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def vector(self, hamiltonian: MolecularHamiltonian) -> StateVector:
        """See :class:`TargetState`; UserError if the file is missing, of another kind or of another sector."""
        try:
            with np.load(self.path) as file:
                numbers = tuple(int(file[name]) for name in ("n_orb", "n_alpha", "n_beta"))
                parity = int(file["spin_parity"]) if "spin_parity" in file else 0
                determinants, log_psi = torch.from_numpy(file["determinants"]), torch.from_numpy(file["log_psi"])
        except (OSError, KeyError, ValueError) as error:
            raise UserError(
                f"pretraining.target.path is {self.path}, expected a determinants.npz written by predict: {error}"
            ) from error
        sector = hamiltonian.sector
        if numbers != (sector.n_orb, sector.n_alpha, sector.n_beta):
            raise UserError(
                f"{self.path} holds (n_orb, n_alpha, n_beta) = {numbers}, the system has "
                f"{(sector.n_orb, sector.n_alpha, sector.n_beta)}: change pretraining.target.path or model.system"
            )
        amplitudes = torch.exp(log_psi - log_psi.real.max())
        if parity == sector.spin_parity:
            return _state(hamiltonian, determinants, amplitudes)
        if parity:
            whole = expand(determinants, parity)
            determinants, amplitudes = whole.determinants, whole.share * amplitudes[whole.member]
        return _state_of_determinants(hamiltonian, determinants, amplitudes)


class CoupledCluster(TargetState):
    """exp(T) on the aufbau determinant up to a power of T, with the amplitudes T of CCSD or MP2 (through PySCF).

    Unlike CISD it holds the disconnected quadruples ½ T2² that a size-extensive state needs. The aufbau determinant
    must be a fair reference: of the target's irrep and even under spin flip.

    Args:
        method: where T comes from.
        order: last power of T; 2 reaches quadruples.
        threshold: products of amplitudes below it are left out.
        max_determinants: only so many of largest weight are kept.
    """

    def __init__(
        self,
        method: Literal["mp2", "ccsd"] = "ccsd",
        order: int = 2,
        threshold: float = 1e-6,
        max_determinants: int = 20_000,
    ) -> None:
        if order < 1 or threshold < 0 or max_determinants < 1:
            raise UserError(
                f"order is {order}, threshold {threshold} and max_determinants {max_determinants}, expected at least "
                "1, 0 and 1: change pretraining.target"
            )
        self.method = method
        self.order = order
        self.threshold = threshold
        self.max_determinants = max_determinants

    def vector(self, hamiltonian: MolecularHamiltonian) -> StateVector:
        """See :class:`TargetState`; UserError where PySCF's solver fails."""
        from nnqs_lightning.chem.cluster import cluster_vector

        state = cluster_vector(hamiltonian.integrals, self.method, self.order, self.threshold)
        state = state.truncated(self.max_determinants)
        determinants = pack(torch.from_numpy(state.occupations.astype(np.int64)))
        return _state_of_determinants(hamiltonian, determinants, torch.from_numpy(state.coefficients))


def reference_determinant(hamiltonian: MolecularHamiltonian) -> Tensor:
    """Where target states begin, int64 [1, 2, W]: the aufbau determinant, if it has the irrep of the target.

    Otherwise, of its singles and doubles with that irrep, the one with the lowest ⟨D|H|D⟩.

    Raises:
        UserError: none of them has it.
    """
    aufbau = hamiltonian.sector.aufbau()
    orbsym, target = hamiltonian.integrals.orbsym, hamiltonian.integrals.wfn_sym
    if orbsym is None or irreps(aufbau, orbsym) == target:
        return aufbau
    excited = hamiltonian.connected_states(aufbau, threshold=-1.0).determinants
    excited = excited[irreps(excited, orbsym) == target]
    if not len(excited):
        raise UserError(
            f"no determinant within two excitations of the aufbau determinant has irrep {target}: change "
            "model.system.wfn_sym or set pretraining to null"
        )
    return excited[hamiltonian.diagonal(excited).argmin()][None]


def irreps(determinants: Tensor, orbsym: tuple[int, ...]) -> Tensor:
    """Irrep of each determinant, 1 … 8 in Molpro's numbering, int64 [N]."""
    irreps = torch.zeros(len(determinants), dtype=torch.int64)
    for orbital, label in zip(unpack(determinants, len(orbsym)).sum(-1).unbind(1), orbsym, strict=True):
        irreps ^= (orbital & 1) * (label - 1)
    return irreps + 1


def lowest_state(hamiltonian: MolecularHamiltonian, determinants: Tensor) -> StateVector:
    """Ground state of H within a set of distinct determinants; its largest coefficient is positive."""
    matrix: Any = hamiltonian.sparse(determinants)
    if len(determinants) <= DENSE_SIZE:
        energies, vectors = np.linalg.eigh(matrix.toarray())
        energy, coefficients = energies[0], vectors[:, 0]
    else:
        from scipy.sparse.linalg import eigsh

        # At random, so that no symmetry keeps it away from the ground state.
        start = np.random.default_rng(0).standard_normal(len(determinants))
        energies, vectors = eigsh(matrix, k=1, which="SA", v0=start, tol=1e-8)
        energy, coefficients = energies[0], vectors[:, 0]
    coefficients = coefficients * np.sign(coefficients[np.argmax(np.abs(coefficients))])
    return StateVector(determinants, torch.from_numpy(coefficients).to(torch.complex128), float(energy))


def with_first_order(hamiltonian: MolecularHamiltonian, state: StateVector, threshold: float) -> StateVector:
    """The state and, outside of its determinants, its first-order Epstein–Nesbet correction; normalised together."""
    outside, amplitudes = first_order_amplitudes(hamiltonian, state, threshold)
    return _state(hamiltonian, torch.cat([state.determinants, outside]), torch.cat([state.coefficients, amplitudes]))


def first_order_amplitudes(
    hamiltonian: MolecularHamiltonian, state: StateVector, threshold: float
) -> tuple[Tensor, Tensor]:
    """⟨D|H|ψ⟩ / (E − H_DD) of determinants D outside the state's set.

    Args:
        hamiltonian: H.
        state: ψ and E.
        threshold: couplings |H_DD' ψ_D'| in hartree below it are not followed.

    Returns:
        int64 [M, 2, W] and complex128 [M].
    """
    from nnqs_lightning.fock.lookup import DeterminantTable

    inside, found = DeterminantTable(state.determinants), DeterminantTable(state.determinants[:0])
    sums = torch.zeros(0, dtype=torch.complex128)
    rows = max(1, CONNECTED_AT_ONCE // hamiltonian.n_connected)
    for determinants, coefficients in zip(state.determinants.split(rows), state.coefficients.split(rows), strict=True):
        connected = hamiltonian.connected_states(determinants)
        flow = connected.elements * coefficients[connected.rows]
        new = (flow.abs() > threshold) & (inside.find(connected.determinants) < 0)
        position = found.insert(connected.determinants[new])
        sums = torch.cat([sums, sums.new_zeros(len(found) - len(sums))])
        sums.index_add_(0, position, flow[new])
    gap = (state.energy - hamiltonian.diagonal(found.rows)).clamp(max=-SMALLEST_GAP)
    return found.rows, sums / gap


def _excitations(hamiltonian: MolecularHamiltonian, reference: Tensor) -> Tensor:
    """The reference and its singles and doubles of the same irrep, those included that H does not reach from it."""
    from nnqs_lightning.fock.lookup import DeterminantTable

    # No coupling is below a negative threshold; a basis of combinations may name one of them twice.
    excited = DeterminantTable(hamiltonian.connected_states(reference, threshold=-1.0).determinants).rows
    return _of_one_irrep(hamiltonian, excited, reference)


def _of_one_irrep(hamiltonian: MolecularHamiltonian, determinants: Tensor, reference: Tensor) -> Tensor:
    """Those with the irrep of ``reference``; all where orbitals carry none."""
    orbsym = hamiltonian.integrals.orbsym
    return determinants if orbsym is None else determinants[irreps(determinants, orbsym) == irreps(reference, orbsym)]


def _state_of_determinants(hamiltonian: MolecularHamiltonian, determinants: Tensor, amplitudes: Tensor) -> StateVector:
    """A state given on determinants, in the basis of the Hamiltonian."""
    parity = hamiltonian.sector.spin_parity
    if parity:
        norm = amplitudes.norm()
        determinants, amplitudes = fold(determinants, amplitudes, parity)
        if amplitudes.norm() < 0.5 * norm:
            raise UserError(
                "the target of pretraining has the other spin parity: change pretraining.target or "
                "model.ansatz.spin_flip"
            )
    return _state(hamiltonian, determinants, amplitudes)


def _state(hamiltonian: MolecularHamiltonian, determinants: Tensor, amplitudes: Tensor) -> StateVector:
    coefficients = (amplitudes / amplitudes.norm()).to(torch.complex128)
    vector = coefficients.numpy()
    energy = np.vdot(vector, hamiltonian.sparse(determinants) @ vector).real
    return StateVector(determinants, coefficients, float(energy))
