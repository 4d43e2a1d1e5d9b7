"""From a few approximate states to the exact energy by a straight line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

NOTHING_LEFT = 1e-12
"""Hartree² of variance, hartree of correction: a state with less is an eigenstate already."""


@dataclass(frozen=True)
class Line:
    """energy = intercept + slope · x."""

    intercept: float
    slope: float
    error: float
    """Standard error of the intercept by the scatter about the line; a curvature of the points is not in it."""


def zero_extrapolation(x: Sequence[float], energies: Sequence[float]) -> Line | None:
    """Least-squares line through (x, energy) and its value at x = 0; the last point is the best state.

    Points weigh in by 1 / x²: the farther from an eigenstate, the more the curve leaves its tangent.

    With the variance of H for x the energy of a state close to the ground state is linear (Kwon, Ceperley & Martin,
    Phys. Rev. B 48, 12037 (1993)); with minus the second-order correction likewise (Holmes, Umrigar & Sharma,
    J. Chem. Phys. 147, 164111 (2017)). Not variational.

    Args:
        x: What vanishes for an eigenstate.
        energies: hartree.

    Returns:
        None for fewer than three points or where x vanishes before the last; the last energy itself where it vanishes
        there.
    """
    if x and x[-1] < NOTHING_LEFT:
        return Line(energies[-1], 0.0, 0.0)
    if len(x) < 3 or len(set(x)) < 2 or min(x) < NOTHING_LEFT:
        return None
    from scipy.optimize import curve_fit

    shift = energies[-1]
    fit, covariance = curve_fit(lambda x, a, b: a + b * x, x, np.subtract(energies, shift), sigma=x)
    return Line(shift + float(fit[0]), float(fit[1]), float(np.sqrt(covariance[0, 0])))


def standard_error(values: Sequence[float]) -> float:
    """Standard error of the mean of independent values."""
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values))
