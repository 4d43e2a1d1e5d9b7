"""How a decoder learns where a token sits."""

from nnqs_lightning.nn.positional.absolute import LearnedAbsolute, NoPositional, Sinusoidal
from nnqs_lightning.nn.positional.base import PositionalFactory, PositionalScheme, PositionContext
from nnqs_lightning.nn.positional.bias import Alibi, RelativeBias, T5Bias
from nnqs_lightning.nn.positional.rotary import Rotary

__all__ = [
    "Alibi",
    "LearnedAbsolute",
    "NoPositional",
    "PositionContext",
    "PositionalFactory",
    "PositionalScheme",
    "RelativeBias",
    "Rotary",
    "Sinusoidal",
    "T5Bias",
]
