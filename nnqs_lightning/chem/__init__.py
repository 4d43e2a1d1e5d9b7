"""Where integrals come from: molecules through PySCF, FCIDUMP files, lattices."""

from nnqs_lightning.chem.active_space import ActiveSpace
from nnqs_lightning.chem.cluster import CIVector, cisd_vector, cluster_vector
from nnqs_lightning.chem.entanglement import mutual_information, orbital_entropies
from nnqs_lightning.chem.fcidump import Fcidump, read_fcidump, write_fcidump
from nnqs_lightning.chem.hubbard import HubbardChain
from nnqs_lightning.chem.integrals import MolecularIntegrals
from nnqs_lightning.chem.molecule import HydrogenChain, Molecule
from nnqs_lightning.chem.system import ReferenceEnergies, System

__all__ = [
    "ActiveSpace",
    "CIVector",
    "Fcidump",
    "HubbardChain",
    "HydrogenChain",
    "MolecularIntegrals",
    "Molecule",
    "ReferenceEnergies",
    "System",
    "cisd_vector",
    "cluster_vector",
    "mutual_information",
    "orbital_entropies",
    "read_fcidump",
    "write_fcidump",
]
