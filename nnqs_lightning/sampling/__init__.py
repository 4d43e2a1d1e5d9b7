"""Samplers of the Born distribution |ψ|²."""

from nnqs_lightning.sampling.annealed import AnnealedSampler
from nnqs_lightning.sampling.base import Sampler
from nnqs_lightning.sampling.core_set import CoreSetSampler
from nnqs_lightning.sampling.enumeration import SumOverStates
from nnqs_lightning.sampling.gumbel import GumbelTopKSampler
from nnqs_lightning.sampling.metropolis import MetropolisSampler
from nnqs_lightning.sampling.multinomial import MultinomialSampler
from nnqs_lightning.sampling.systematic import SystematicSampler

__all__ = [
    "AnnealedSampler",
    "CoreSetSampler",
    "GumbelTopKSampler",
    "MetropolisSampler",
    "MultinomialSampler",
    "Sampler",
    "SumOverStates",
    "SystematicSampler",
]
