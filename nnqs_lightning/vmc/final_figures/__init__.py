"""What can be said of a wave function in the end: energies with their errors, spin, extrapolations."""

from nnqs_lightning.vmc.final_figures.extrapolation import Line, standard_error, zero_extrapolation
from nnqs_lightning.vmc.final_figures.figures import Limits, Row, SetFigures, Truncation, set_figures
from nnqs_lightning.vmc.final_figures.spin import spin_squared
from nnqs_lightning.vmc.final_figures.states import Outside, ground_state, outside

__all__ = [
    "Limits",
    "Line",
    "Outside",
    "Row",
    "SetFigures",
    "Truncation",
    "ground_state",
    "outside",
    "set_figures",
    "spin_squared",
    "standard_error",
    "zero_extrapolation",
]
