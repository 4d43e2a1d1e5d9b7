"""Local energies, estimators and what is minimised."""

from nnqs_lightning.vmc.base import LocalEnergies, LocalEnergy
from nnqs_lightning.vmc.local_energy import ExactLocalEnergy, SubspaceLocalEnergy

__all__ = ["ExactLocalEnergy", "LocalEnergies", "LocalEnergy", "SubspaceLocalEnergy"]
