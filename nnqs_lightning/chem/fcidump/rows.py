"""The rows of an FCIDUMP file: a value and four indices each."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nnqs_lightning.errors import UserError

ROW = np.dtype([("value", np.float64), ("indices", np.int64, (4,))])

NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[EeDdQq][+-]?\d+|[+-]\d+)?"
REAL_ROW = re.compile(rf"({NUMBER})((?:\s+\d+){{4}})")
COMPLEX_ROW = re.compile(rf"\(\s*({NUMBER})\s*[,\s]\s*({NUMBER})\s*\)((?:\s+\d+){{4}})")
TWO_COLUMN_ROW = re.compile(rf"({NUMBER})\s+({NUMBER})((?:\s+\d+){{4}})")


@dataclass(frozen=True)
class Rows:
    """Values with their indices, in the order of the file."""

    values: NDArray[np.float64]
    """[n_rows]"""
    indices: NDArray[np.int64]
    """[n_rows, 4], counted from 1; 0 where the row has fewer."""
    lines: NDArray[np.int64]
    """[n_rows] line numbers in the file, counted from 1."""

    def pick(self, which: NDArray[np.bool_] | NDArray[np.int64]) -> Rows:
        """Some of the rows, by mask or position."""
        return Rows(self.values[which], self.indices[which], self.lines[which])


def parse_rows(lines: list[str], first_line: int, where: str) -> Rows:
    """Parse everything after the header.

    Args:
        lines: the lines.
        first_line: number of the first of them in the file.
        where: names the file in messages.

    Raises:
        UserError: a line that is no row, or a complex value; the message has the line number.
    """
    numbers = np.array([i for i, line in enumerate(lines, start=first_line) if line.strip()], dtype=np.int64)
    if not len(numbers):
        raise UserError(f"{where}: no integrals after the header, the file is truncated")
    body = "\n".join(lines)
    # The fast path knows nothing but Fortran's D exponents; whatever else it stumbles on is looked at line by line.
    try:
        if re.search(r"[^\d\s.EeDd+-]", body):
            raise ValueError
        table = np.loadtxt(io.StringIO(body.translate(str.maketrans("Dd", "EE"))), dtype=ROW, comments=None, ndmin=1)
    except ValueError:
        return _parse_slowly(lines, first_line, where)
    values, indices = table["value"], table["indices"]
    if len(values) != len(numbers) or not np.isfinite(values).all() or (indices < 0).any():
        return _parse_slowly(lines, first_line, where)
    return Rows(values, indices, numbers)


def _parse_slowly(lines: list[str], first_line: int, where: str) -> Rows:
    values, indices, numbers = [], [], []
    was_complex: bool | None = None
    for number, raw in enumerate(lines, start=first_line):
        line = raw.strip()
        if not line:
            continue
        value, four, is_complex = _parse_line(line, f"{where}, line {number}")
        if was_complex not in (None, is_complex):
            raise UserError(f"{where}, line {number}: real and complex values in one file: it is damaged")
        was_complex = is_complex
        values.append(value)
        indices.append(four)
        numbers.append(number)
    return Rows(np.array(values), np.array(indices, dtype=np.int64), np.array(numbers, dtype=np.int64))


def _parse_line(line: str, where: str) -> tuple[float, list[int], bool]:
    """Value, indices, and whether the row has an imaginary part (which must be zero)."""
    if "(" not in line:
        line = line.replace(",", " ")
    match = REAL_ROW.fullmatch(line)
    if match:
        value, indices = match.groups()
        return _to_float(value, where), [int(index) for index in indices.split()], False
    match = COMPLEX_ROW.fullmatch(line) or TWO_COLUMN_ROW.fullmatch(line)
    if match is None:
        raise UserError(f"{where}: '{line[:60]}' is not a value and four indices: the file is damaged")
    real, imaginary, indices = match.groups()
    if _to_float(imaginary, where) != 0.0:
        raise UserError(f"{where}: complex value {real} + {imaginary}i, expected the integrals of real orbitals")
    return _to_float(real, where), [int(index) for index in indices.split()], True


def _to_float(text: str, where: str) -> float:
    mantissa = re.sub(r"[DdQq]", "E", text)
    # Fortran drops the letter when the exponent has three digits: 0.1-100 is 0.1E-100.
    value = float(re.sub(r"(?<=[\d.])([+-]\d+)$", r"E\1", mantissa))
    if not np.isfinite(value):
        raise UserError(f"{where}: the value {text} is too large")
    return value
