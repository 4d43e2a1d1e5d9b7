"""Rows to arrays: equal entries by symmetry are filled in, and rows that should be equal are compared."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nnqs_lightning.chem.fcidump.rows import Rows
from nnqs_lightning.chem.integrals import SYMMETRY_TOLERANCE
from nnqs_lightning.errors import UserError


def fill_one_body(rows: Rows, n_orb: int, where: str) -> NDArray[np.float64]:
    """[n_orb, n_orb] symmetric matrix from rows `h p q 0 0` in either triangle.

    Raises:
        UserError: two rows disagree, or only some rows of a matrix written out in full have their mirror image.
    """
    p, q = rows.indices[:, 0] - 1, rows.indices[:, 1] - 1
    key = _pair(p, q)
    position, values = _distinct(key, rows, where)
    _check_mirrors(p * n_orb + q, q * n_orb + p, rows, where)
    matrix = np.zeros((n_orb, n_orb))
    p, q = p[position], q[position]
    matrix[p, q] = matrix[q, p] = values
    return matrix


def fill_two_body(rows: Rows, n_orb: int, where: str) -> NDArray[np.float64]:
    """[n_orb, n_orb, n_orb, n_orb] 8-fold symmetric (pq|rs) from rows with any symmetry.

    Raises:
        UserError: two rows disagree, or only some rows of a file with redundant rows have their mirror image: then the
            integrals lack the symmetry of real orbitals.
    """
    p, q, r, s = (rows.indices - 1).T
    bra, ket = _pair(p, q), _pair(r, s)
    position, values = _distinct(_pair(bra, ket), rows, where)
    exact = _flat(n_orb, p, q, r, s)
    for mirror in ((q, p, r, s), (p, q, s, r), (r, s, p, q)):
        _check_mirrors(exact, _flat(n_orb, *mirror), rows, where)
    n_pairs = n_orb * (n_orb + 1) // 2
    packed = np.zeros((n_pairs, n_pairs))
    bra, ket = bra[position], ket[position]
    packed[bra, ket] = packed[ket, bra] = values
    every = np.arange(n_orb)
    pair_of = _pair(every[:, None], every[None, :])
    return packed[pair_of[:, :, None, None], pair_of[None, None, :, :]]


def _pair(p: NDArray[np.int64], q: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number of the unordered pair {p, q}."""
    larger, smaller = np.maximum(p, q), np.minimum(p, q)
    return larger * (larger + 1) // 2 + smaller


def _flat(
    n_orb: int, p: NDArray[np.int64], q: NDArray[np.int64], r: NDArray[np.int64], s: NDArray[np.int64]
) -> NDArray[np.int64]:
    return ((p * n_orb + q) * n_orb + r) * n_orb + s


def _distinct(key: NDArray[np.int64], rows: Rows, where: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Position and value of the first row of every key, after comparing all rows of a key with the first."""
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    difference = np.abs(rows.values - rows.values[first][inverse])
    if difference.size and difference.max() > SYMMETRY_TOLERANCE:
        at = int(np.argmax(difference > SYMMETRY_TOLERANCE))
        other = int(first[inverse[at]])
        raise UserError(
            f"{where}, lines {rows.lines[other]} and {rows.lines[at]}: {rows.values[other]} and {rows.values[at]} for "
            "integrals that are equal for real spatial orbitals: the file is damaged or not restricted and real"
        )
    return first, rows.values[first]


def _check_mirrors(exact: NDArray[np.int64], mirror: NDArray[np.int64], rows: Rows, where: str) -> None:
    """A symmetry that some pair of rows writes out must be written out by all rows; a missing row would mean zero."""
    present = np.isin(mirror, exact)
    if not (present & (mirror != exact)).any():
        return
    lonely = ~present & (np.abs(rows.values) > SYMMETRY_TOLERANCE)
    if lonely.any():
        at = int(np.argmax(lonely))
        row = " ".join(str(index) for index in rows.indices[at] if index)
        raise UserError(
            f"{where}, line {rows.lines[at]}: the file writes out symmetric entries, but not that of {row}: it is "
            "truncated or its integrals are not those of real orbitals"
        )
