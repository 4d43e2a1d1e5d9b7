"""Estimates of the local energy: on every connected state, or within the sampled set."""

from nnqs_lightning.vmc.local_energy.exact import ExactLocalEnergy
from nnqs_lightning.vmc.local_energy.subspace import SubspaceLocalEnergy

__all__ = ["ExactLocalEnergy", "SubspaceLocalEnergy"]
