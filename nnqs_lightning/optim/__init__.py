"""Directions of descent, optimisers, schedules and the supervised start."""

from nnqs_lightning.optim.base import Direction
from nnqs_lightning.optim.energy_gradient import EnergyGradient
from nnqs_lightning.optim.muon import Muon
from nnqs_lightning.optim.natural import MinSR, Spring
from nnqs_lightning.optim.pretraining import Pretraining
from nnqs_lightning.optim.soap import SOAP

__all__ = ["SOAP", "Direction", "EnergyGradient", "MinSR", "Muon", "Pretraining", "Spring"]
