"""How a decoder learns where a token sits."""

from nnqs_lightning.nn.positional.absolute import LearnedAbsolute, NoPositional, Sinusoidal, SpinAware
from nnqs_lightning.nn.positional.base import PositionalFactory, PositionalScheme, PositionContext
from nnqs_lightning.nn.positional.bias import Alibi, DistanceBias, RelativeBias, T5Bias
from nnqs_lightning.nn.positional.combined import Combined
from nnqs_lightning.nn.positional.contextual import Cope
from nnqs_lightning.nn.positional.decay import Fire, Kerple
from nnqs_lightning.nn.positional.lattice import Lattice2D
from nnqs_lightning.nn.positional.orbital_features import OrbitalFeatures
from nnqs_lightning.nn.positional.orbital_graph import FiedlerDistance, StrongPairDistance, fiedler_vector
from nnqs_lightning.nn.positional.orbital_pairs import IntegralBias, MutualInformationBias
from nnqs_lightning.nn.positional.rotary import Rotary, RotaryLearned, XPos

__all__ = [
    "Alibi",
    "Combined",
    "Cope",
    "DistanceBias",
    "FiedlerDistance",
    "Fire",
    "IntegralBias",
    "Kerple",
    "Lattice2D",
    "LearnedAbsolute",
    "MutualInformationBias",
    "NoPositional",
    "OrbitalFeatures",
    "PositionContext",
    "PositionalFactory",
    "PositionalScheme",
    "RelativeBias",
    "Rotary",
    "RotaryLearned",
    "Sinusoidal",
    "SpinAware",
    "StrongPairDistance",
    "T5Bias",
    "XPos",
    "fiedler_vector",
]
