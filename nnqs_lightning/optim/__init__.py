"""Directions of descent and optimisers."""

from nnqs_lightning.optim.base import Direction
from nnqs_lightning.optim.energy_gradient import EnergyGradient
from nnqs_lightning.optim.natural import MinSR, Spring

__all__ = ["Direction", "EnergyGradient", "MinSR", "Spring"]
