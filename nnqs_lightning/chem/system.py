"""What every source of integrals offers: the type behind the config key ``model.system``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields

from nnqs_lightning.chem.integrals import MolecularIntegrals


@dataclass(frozen=True)
class ReferenceEnergies:
    """Energies of established methods in hartree; None where a method was not affordable or did not converge."""

    hf: float | None = None
    mp2: float | None = None
    cisd: float | None = None
    ccsd: float | None = None
    ccsd_t: float | None = None
    fci: float | None = None

    def best(self) -> tuple[str, float] | None:
        """Name and energy of the most trustworthy entry (FCI, then CCSD(T), …), None if all are missing."""
        for entry in reversed(fields(self)):
            value = getattr(self, entry.name)
            if value is not None:
                return entry.name, value
        return None


class System(ABC):
    """A source of integrals. Constructing one is cheap and imports no chemistry package; the work is done on demand."""

    name: str
    """Short name for logs and run folders."""

    @abstractmethod
    def integrals(self) -> MolecularIntegrals:
        """The integrals; computed once, then cached on disk and in memory."""

    @abstractmethod
    def reference_energies(self) -> ReferenceEnergies:
        """Reference energies in the right spin sector; computed once, then cached on disk and in memory."""
