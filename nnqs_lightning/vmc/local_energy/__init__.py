"""Estimates of the local energy: on every connected state, or within the sampled set."""

from nnqs_lightning.vmc.local_energy.exact import ExactLocalEnergy
from nnqs_lightning.vmc.local_energy.incremental import IncrementalSubspaceLocalEnergy
from nnqs_lightning.vmc.local_energy.screened import ScreenedLocalEnergy
from nnqs_lightning.vmc.local_energy.spin_penalty import SpinPenalty
from nnqs_lightning.vmc.local_energy.subspace import SubspaceLocalEnergy, SubspaceWeights

__all__ = [
    "ExactLocalEnergy",
    "IncrementalSubspaceLocalEnergy",
    "ScreenedLocalEnergy",
    "SpinPenalty",
    "SubspaceLocalEnergy",
    "SubspaceWeights",
]
