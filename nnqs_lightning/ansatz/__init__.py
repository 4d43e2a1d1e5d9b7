"""Wave functions of determinants."""

from nnqs_lightning.ansatz.base import Ansatz, AnsatzFactory, AutoregressiveAnsatz
from nnqs_lightning.ansatz.loading import LoadReport, load_matching
from nnqs_lightning.ansatz.orbital_order import (
    AsGiven,
    EnergyOrder,
    ExplicitOrder,
    FiedlerOrder,
    OrbitalOrder,
    RandomOrder,
    Reversed,
)
from nnqs_lightning.ansatz.phase import HiddenPhase, MLPPhase, NoPhase, Phase, PhaseContext
from nnqs_lightning.ansatz.transformer import TransformerAnsatz

__all__ = [
    "Ansatz",
    "AnsatzFactory",
    "AsGiven",
    "AutoregressiveAnsatz",
    "EnergyOrder",
    "ExplicitOrder",
    "FiedlerOrder",
    "HiddenPhase",
    "LoadReport",
    "MLPPhase",
    "NoPhase",
    "OrbitalOrder",
    "Phase",
    "PhaseContext",
    "RandomOrder",
    "Reversed",
    "TransformerAnsatz",
    "load_matching",
]
