"""What all systems share: results are computed once, then kept in memory and on disk."""

from __future__ import annotations

import json
from abc import abstractmethod
from dataclasses import asdict, replace
from functools import reduce
from operator import xor

from nnqs_lightning.chem.cache import cache_key, cached
from nnqs_lightning.chem.integrals import MolecularIntegrals
from nnqs_lightning.chem.reference import compute_reference_energies
from nnqs_lightning.chem.system import ReferenceEnergies, System
from nnqs_lightning.errors import UserError


class CachedSystem(System):
    """A system whose reference energies follow from its integrals and are cached under their fingerprint."""

    def __init__(self, max_fci_determinants: int, wfn_sym: int | None) -> None:
        if wfn_sym is not None and not 1 <= wfn_sym <= 8:
            raise UserError(f"model.system.wfn_sym is {wfn_sym}: expected the number of an irrep, 1 … 8")
        if max_fci_determinants < 0:
            raise UserError(f"model.system.max_fci_determinants is {max_fci_determinants}: expected 0 or more")
        self.max_fci_determinants = max_fci_determinants
        self.wfn_sym = wfn_sym
        self._integrals: MolecularIntegrals | None = None
        self._references: ReferenceEnergies | None = None

    @abstractmethod
    def _make_integrals(self) -> MolecularIntegrals:
        """The integrals, from the disk cache or anew."""

    def integrals(self) -> MolecularIntegrals:
        """The integrals; computed once, then cached on disk and in memory.

        Their target irrep is ``wfn_sym``; left out, that of the file, and where it says 1 or nothing, that of the
        determinant of the lowest orbitals.
        """
        if self._integrals is None:
            integrals = self._make_integrals()
            if self.wfn_sym is not None:
                possible = _irreps_of_determinants(integrals)
                if self.wfn_sym not in possible:
                    raise UserError(f"model.system.wfn_sym is {self.wfn_sym}: the determinants here have {possible}")
                integrals = replace(integrals, wfn_sym=self.wfn_sym)
            elif integrals.orbsym is not None and integrals.wfn_sym == 1:
                # Files say 1 where their writer did not know.
                integrals = replace(integrals, wfn_sym=_aufbau_irrep(integrals))
            self._integrals = integrals
        return self._integrals

    def reference_energies(self) -> ReferenceEnergies:
        """Reference energies in the right spin sector; computed once, then cached on disk and in memory."""
        if self._references is None:
            integrals = self.integrals()
            key = cache_key(
                {
                    "integrals": integrals.digest(),
                    "orbsym": integrals.orbsym if self.wfn_sym else None,
                    "wfn_sym": self.wfn_sym,
                    "max_fci_determinants": self.max_fci_determinants,
                }
            )
            self._references = cached(
                f"{key}.references.json",
                lambda: compute_reference_energies(integrals, self.max_fci_determinants, self.wfn_sym),
                lambda energies: json.dumps(asdict(energies)).encode(),
                lambda content: ReferenceEnergies(**json.loads(content)),
                f"reference energies of {self.name}",
            )
        return self._references


def _aufbau_irrep(integrals: MolecularIntegrals) -> int:
    """Irrep of the determinant of the lowest orbitals: of its singly occupied ones."""
    assert integrals.orbsym is not None
    open_shells = integrals.orbsym[integrals.n_beta : integrals.n_alpha]
    return reduce(xor, (label - 1 for label in open_shells), 0) + 1


def _irreps_of_determinants(integrals: MolecularIntegrals) -> list[int]:
    if integrals.orbsym is None:
        raise UserError("model.system.wfn_sym is set, but the orbitals have no irreps: leave it out")
    strings = {(0, 0)}
    for label in integrals.orbsym:
        strings |= {(n + 1, irrep ^ (label - 1)) for n, irrep in strings}
    alpha, beta = ({irrep for n, irrep in strings if n == wanted} for wanted in (integrals.n_alpha, integrals.n_beta))
    return sorted({(a ^ b) + 1 for a in alpha for b in beta})
