"""Where integrals come from: molecules through PySCF, FCIDUMP files, lattices."""

from nnqs_lightning.chem.active_space import ActiveSpace
from nnqs_lightning.chem.fcidump import Fcidump, read_fcidump, write_fcidump
from nnqs_lightning.chem.hubbard import HubbardChain
from nnqs_lightning.chem.integrals import MolecularIntegrals
from nnqs_lightning.chem.molecule import HydrogenChain, Molecule
from nnqs_lightning.chem.system import ReferenceEnergies, System

__all__ = [
    "ActiveSpace",
    "Fcidump",
    "HubbardChain",
    "HydrogenChain",
    "MolecularIntegrals",
    "Molecule",
    "ReferenceEnergies",
    "System",
    "read_fcidump",
    "write_fcidump",
]
