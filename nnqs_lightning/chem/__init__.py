"""Where integrals come from: molecules through PySCF, FCIDUMP files, lattices."""

from nnqs_lightning.chem.integrals import MolecularIntegrals
from nnqs_lightning.chem.system import ReferenceEnergies, System

__all__ = ["MolecularIntegrals", "ReferenceEnergies", "System"]
