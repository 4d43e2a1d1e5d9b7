"""Which orbitals take part: frozen core and active space, and the reduction of the integrals to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from nnqs_lightning.chem.integrals import MolecularIntegrals
from nnqs_lightning.errors import UserError

KEY = "model.system.active_space"


@dataclass(frozen=True)
class ActiveSpace:
    """The orbitals and electrons that are correlated; those below stay doubly occupied, those above empty.

    Raises:
        UserError: an electron number that the orbitals cannot hold, or an orbital list with repeats.
    """

    n_electrons: int | None = None
    """Number of active electrons. Left out, it follows from the occupied orbitals among `orbitals`."""
    n_orbitals: int | None = None
    """Number of active orbitals: the ones next above the frozen ones. Leave it out when `orbitals` is given."""
    orbitals: list[int] | None = None
    """The active orbitals themselves, counted from 0: occupied ones first, then the empty ones, each by energy."""

    def __post_init__(self) -> None:
        if self.orbitals is None and (self.n_electrons is None or self.n_orbitals is None):
            raise UserError(f"{KEY}: give n_electrons and n_orbitals, or a list `orbitals`")
        if self.orbitals is not None:
            if self.n_orbitals not in (None, len(self.orbitals)):
                raise UserError(f"{KEY}: n_orbitals is {self.n_orbitals}, but `orbitals` lists {len(self.orbitals)}")
            if len(set(self.orbitals)) != len(self.orbitals) or any(p < 0 for p in self.orbitals) or not self.orbitals:
                raise UserError(f"{KEY}.orbitals is {self.orbitals}: expected distinct numbers, counted from 0")

    @property
    def size(self) -> int:
        """Number of active orbitals."""
        if self.orbitals is not None:
            return len(self.orbitals)
        assert self.n_orbitals is not None
        return self.n_orbitals

    def check(self, n_electrons: int, spin: int) -> None:
        """What can be checked before the orbitals are known.

        Args:
            n_electrons: of the whole molecule.
            spin: 2S.

        Raises:
            UserError: the active space does not fit the molecule.
        """
        active = self.n_electrons
        if active is None:
            return
        if not 0 < active <= n_electrons or (n_electrons - active) % 2:
            raise UserError(
                f"{KEY}.n_electrons is {active}: expected a number from 1 to {n_electrons} that leaves an even "
                f"number of the {n_electrons} electrons in the core"
            )
        if active < spin or active + spin > 2 * self.size:
            raise UserError(
                f"{KEY}: {active} electrons with spin {spin} do not fit into {self.size} orbitals, "
                f"change {KEY}.n_electrons, {KEY}.n_orbitals or model.system.spin"
            )


def partition(
    n_orb: int, n_alpha: int, n_beta: int, frozen_core: int, active_space: ActiveSpace | None
) -> tuple[list[int], list[int]]:
    """Core and active orbitals.

    Args:
        n_orb: number of orbitals, the occupied ones first.
        n_alpha: number of α electrons.
        n_beta: number of β electrons.
        frozen_core: number of lowest orbitals kept doubly occupied; 0 with an active space.
        active_space: the request, None for all orbitals above the frozen core.

    Raises:
        UserError: the request does not fit the orbitals.
    """
    if active_space is None:
        if not 0 <= frozen_core <= n_beta or frozen_core >= n_alpha:
            raise UserError(
                f"model.system.frozen_core is {frozen_core}: {n_alpha} α and {n_beta} β electrons leave room for "
                f"{min(n_beta, n_alpha - 1)} frozen orbitals at most"
            )
        return list(range(frozen_core)), list(range(frozen_core, n_orb))
    if frozen_core:
        raise UserError("model.system.frozen_core and model.system.active_space exclude each other: leave one out")
    active_space.check(n_alpha + n_beta, n_alpha - n_beta)
    core, active = _chosen(active_space, n_alpha, n_beta)
    if active and max(active) >= n_orb:
        raise UserError(f"{KEY}: orbital {max(active)} (counted from 0) is asked for, there are {n_orb} orbitals")
    if len(core) > n_beta or n_alpha - len(core) > len(active) or n_alpha == len(core):
        raise UserError(
            f"{KEY}: {n_alpha - len(core)} α and {n_beta - len(core)} β electrons in {len(active)} active orbitals do "
            "not fit, change n_electrons or the orbitals"
        )
    return core, active


def _chosen(active_space: ActiveSpace, n_alpha: int, n_beta: int) -> tuple[list[int], list[int]]:
    if active_space.orbitals is None:
        assert active_space.n_electrons is not None
        n_core = (n_alpha + n_beta - active_space.n_electrons) // 2
        return list(range(n_core)), list(range(n_core, n_core + active_space.size))
    active = sorted(active_space.orbitals)
    inactive = [p for p in range(n_alpha + n_beta + max(active)) if p not in active]
    if active_space.n_electrons is not None:
        return inactive[: (n_alpha + n_beta - active_space.n_electrons) // 2], active
    if any(p not in active for p in range(n_beta, n_alpha)):
        raise UserError(
            f"{KEY}.orbitals leaves out a singly occupied orbital: expected {list(range(n_beta, n_alpha))} in it"
        )
    return [p for p in inactive if p < n_beta], active


def reduce_integrals(integrals: MolecularIntegrals, core: Sequence[int], active: Sequence[int]) -> MolecularIntegrals:
    """Integrals over the active orbitals in the mean field of a doubly occupied core.

    e_core gains 2 Σ_i h_ii + Σ_ij [2 (ii|jj) − (ij|ji)] and h_pq gains Σ_i [2 (pq|ii) − (pi|iq)], i and j over the
    core (Helgaker, Jørgensen and Olsen, Molecular Electronic-Structure Theory, section 12.2).

    Args:
        integrals: over all orbitals.
        core: doubly occupied orbitals, left out of the result.
        active: orbitals kept, in this order.
    """
    if not core and list(active) == list(range(integrals.n_orb)):
        return integrals
    i, p = list(core), list(active)
    frozen = integrals.eri[np.ix_(range(integrals.n_orb), range(integrals.n_orb), i, i)]
    exchange = integrals.eri[np.ix_(range(integrals.n_orb), i, i, range(integrals.n_orb))]
    field = 2.0 * np.einsum("pqii->pq", frozen) - np.einsum("piiq->pq", exchange)
    field = 0.5 * (field + field.T)
    core_energy = 2.0 * np.trace(integrals.h1e[np.ix_(i, i)]) + np.trace(field[np.ix_(i, i)])
    pick = np.ix_(p, p)
    return replace(
        integrals,
        h1e=integrals.h1e[pick] + field[pick],
        eri=integrals.eri[np.ix_(p, p, p, p)],
        e_core=float(integrals.e_core + core_energy),
        n_alpha=integrals.n_alpha - len(i),
        n_beta=integrals.n_beta - len(i),
        orbsym=None if integrals.orbsym is None else tuple(integrals.orbsym[q] for q in p),
        mo_energy=None if integrals.mo_energy is None else integrals.mo_energy[p],
        mo_coeff=None if integrals.mo_coeff is None else integrals.mo_coeff[:, p],
        orbital_features={name: values[p] for name, values in integrals.orbital_features.items()},
    )
