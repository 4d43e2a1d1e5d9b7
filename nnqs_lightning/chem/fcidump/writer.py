"""From integrals to an FCIDUMP file that reads back bit for bit."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from nnqs_lightning.chem.cache import write_temporary
from nnqs_lightning.chem.integrals import MolecularIntegrals


def write_fcidump(path: str | Path, integrals: MolecularIntegrals) -> None:
    """Write integrals to an FCIDUMP file in one step; gzip when the name ends in .gz.

    Zeros are left out and every other value has the 17 digits that determine a float64, so that reading the file
    back gives the same integrals bit for bit (orbital coefficients and the name of the point group aside).
    """
    path = Path(path)
    content = "\n".join([*_header(integrals), *_rows(integrals), ""]).encode()
    if path.suffix == ".gz":
        content = gzip.compress(content, mtime=0)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_temporary(path, content).replace(path)


def _header(integrals: MolecularIntegrals) -> Iterator[str]:
    n_electrons = integrals.n_alpha + integrals.n_beta
    yield f" &FCI NORB={integrals.n_orb},NELEC={n_electrons},MS2={integrals.spin},"
    yield "  ORBSYM=" + "".join(f"{label}," for label in integrals.orbsym or (1,) * integrals.n_orb)
    yield f"  ISYM={integrals.wfn_sym},"
    yield " &END"


def _rows(integrals: MolecularIntegrals) -> Iterator[str]:
    first, second = np.tril_indices(integrals.n_orb)
    pairs = integrals.eri[first, second][:, first, second]
    for bra, ket in zip(*np.nonzero(np.tril(pairs)), strict=True):
        indices = (first[bra], second[bra], first[ket], second[ket])
        yield _row(pairs[bra, ket], *(int(index) + 1 for index in indices))
    for p, q in zip(first.tolist(), second.tolist(), strict=True):
        # Diagonal rows are written even when zero: they show that the file is complete.
        if p == q or integrals.h1e[p, q]:
            yield _row(integrals.h1e[p, q], p + 1, q + 1, 0, 0)
    if integrals.mo_energy is not None:
        for p, energy in enumerate(integrals.mo_energy, start=1):
            yield _row(energy, p, 0, 0, 0)
    yield _row(integrals.e_core, 0, 0, 0, 0)


def _row(value: float, p: int, q: int, r: int, s: int) -> str:
    return f"{value:24.16e} {p:4d} {q:4d} {r:4d} {s:4d}"
