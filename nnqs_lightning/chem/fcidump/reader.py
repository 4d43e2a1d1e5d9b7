"""From an FCIDUMP file to integrals: the right numbers or a clear refusal."""

from __future__ import annotations

import gzip
import logging
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nnqs_lightning.chem.fcidump.header import Header, parse_header
from nnqs_lightning.chem.fcidump.rows import Rows, parse_rows
from nnqs_lightning.chem.fcidump.tables import fill_one_body, fill_two_body
from nnqs_lightning.chem.integrals import SYMMETRY_TOLERANCE, MolecularIntegrals
from nnqs_lightning.errors import UserError

log = logging.getLogger(__name__)

LABEL_TOLERANCE = 1e-6
"""An integral larger than this that ORBSYM forbids proves the labels wrong."""


def read_fcidump(
    path: str | Path, n_electrons: int | None = None, spin: int | None = None, e_core: float | None = None
) -> MolecularIntegrals:
    """Read integrals from an FCIDUMP file, plain or gzip.

    One-electron rows may stand in either triangle and two-electron rows may be written out with 8-fold, 4-fold or no
    symmetry; rows that symmetry makes equal must agree to 1e-8. Orbital energies (`ε i 0 0 0`) become ``mo_energy``.

    Args:
        path: the file.
        n_electrons: number of electrons instead of the header's NELEC.
        spin: 2S instead of the header's MS2.
        e_core: core energy in hartree of a file without such a row. A file of nothing but on-site repulsion and
            hopping needs none: it is a lattice model, and 0 is assumed.

    Raises:
        UserError: the file is missing, damaged, truncated or contradicts itself, or has complex, unrestricted or
            spin-orbital integrals. The message has the line number where there is one.
    """
    path = Path(path)
    text = _read_text(path)
    where = str(path)
    header = parse_header(text, where)
    lines = text.split("\n")
    rows = parse_rows(lines[header.n_lines :], header.n_lines + 1, where)
    _check_indices(rows, header.n_orb, where)
    if header.unrestricted:
        rows = _restricted_part(rows, header.n_orb, where)
    return _assemble(header, rows, n_electrons, spin, e_core, where)


def _read_text(path: Path) -> str:
    if not path.is_file():
        raise UserError(f"no file '{path}': expected an FCIDUMP file, change model.system.path")
    content = path.read_bytes()
    try:
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
        return content.decode("ascii").replace("\r\n", "\n")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(
            f"{path} is no complete gzip file ({error}): fetch it again or change model.system.path"
        ) from None
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}, line {line}: not plain text, is model.system.path an FCIDUMP file?") from None


def _check_indices(rows: Rows, n_orb: int, where: str) -> None:
    too_large = (rows.indices > n_orb).any(axis=1)
    used = rows.indices != 0
    # Allowed patterns: pqrs, pq00, p000, 0000.
    filled = used.sum(axis=1)
    malformed = (used != (np.arange(4) < filled[:, None])).any(axis=1) | (filled == 3)
    for bad, complaint in ((too_large, f"an orbital above NORB={n_orb}"), (malformed, "a zero among the indices")):
        if bad.any():
            at = int(np.argmax(bad))
            row = " ".join(str(index) for index in rows.indices[at])
            raise UserError(f"{where}, line {rows.lines[at]}: {complaint} in '{row}': the file is damaged")


def _restricted_part(rows: Rows, n_orb: int, where: str) -> Rows:
    """The α part of an unrestricted file whose α and β integrals are the same.

    Such a file has six sections, each ended by a row of zeros: (αα|αα), (ββ|ββ), (αα|ββ), h_α, h_β, core energy.
    """
    ends = np.flatnonzero((rows.indices == 0).all(axis=1))
    if len(ends) != 6 or rows.values[ends[:5]].any():
        raise UserError(f"{where}: IUHF is set but the file has not six sections ended by zero rows: it is damaged")
    bounds = zip(np.concatenate(([0], ends[:-1] + 1)), ends, strict=True)
    sections = [rows.pick(np.arange(start, end)) for start, end in bounds]
    for section, n_indices in zip(sections, (4, 4, 4, 2, 2, 0), strict=True):
        misplaced = (section.indices != 0).sum(axis=1) != n_indices
        if misplaced.any():
            line = section.lines[np.argmax(misplaced)]
            raise UserError(
                f"{where}, line {line}: expected {n_indices} indices in this section of an unrestricted file"
            )
    aa, bb, ab = (fill_two_body(section, n_orb, where) for section in sections[:3])
    h_a, h_b = (fill_one_body(section, n_orb, where) for section in sections[3:5])
    difference = max(np.abs(aa - bb).max(), np.abs(aa - ab).max(), np.abs(h_a - h_b).max())
    if difference > SYMMETRY_TOLERANCE:
        raise UserError(
            f"{where}: unrestricted integrals (IUHF), α and β orbitals differ by up to {difference:.1e} hartree: "
            "expected one set of spatial orbitals, export RHF or ROHF integrals"
        )
    log.warning("%s: IUHF is set but α and β integrals are the same; read as restricted", where)
    keep = [*range(0, ends[0]), *range(ends[2] + 1, ends[3]), *range(ends[4] + 1, ends[5] + 1)]
    return rows.pick(np.array(keep))


def _assemble(
    header: Header, rows: Rows, n_electrons: int | None, spin: int | None, e_core: float | None, where: str
) -> MolecularIntegrals:
    n_indices = (rows.indices != 0).sum(axis=1)
    kinds = {n: rows.pick(n_indices == n) for n in range(5)}
    _check_complete(rows, kinds, header.n_orb, where)
    eri = fill_two_body(kinds[4], header.n_orb, where)
    h1e = fill_one_body(kinds[2], header.n_orb, where)
    _refuse_spin_orbitals(h1e, eri, where)
    n_alpha, n_beta = _electrons(header, n_electrons, spin, where)
    orbsym = _consistent_labels(header.orbsym, h1e, eri, where)
    return MolecularIntegrals(
        h1e=h1e,
        eri=eri,
        e_core=_core_energy(kinds[0], kinds[4], e_core, where),
        n_alpha=n_alpha,
        n_beta=n_beta,
        orbsym=orbsym,
        mo_energy=_orbital_energies(kinds[1], header.n_orb, where),
        wfn_sym=header.wfn_sym if orbsym is not None and 1 <= header.wfn_sym <= 8 else 1,
    )


def _check_complete(rows: Rows, kinds: dict[int, Rows], n_orb: int, where: str) -> None:
    missing = sorted(set(range(1, n_orb + 1)) - set(rows.indices.ravel().tolist()))
    if missing:
        raise UserError(
            f"{where}: orbital {missing[0]} of NORB={n_orb} is in no row: the file is truncated or NORB wrong"
        )
    if not len(kinds[2].values):
        raise UserError(
            f"{where}, line {rows.lines[-1]}: the file ends without one-electron integrals: it is truncated"
        )


def _electrons(header: Header, n_electrons: int | None, spin: int | None, where: str) -> tuple[int, int]:
    n = header.n_electrons if n_electrons is None else n_electrons
    s = header.spin if spin is None else spin
    if (n - s) % 2 or not 0 <= s <= n or n + s > 2 * header.n_orb:
        raise UserError(
            f"{where}: {n} electrons with 2S = {s} in {header.n_orb} orbitals are impossible, "
            "set model.system.n_electrons and model.system.spin"
        )
    return (n + s) // 2, (n - s) // 2


def _core_energy(core: Rows, two_body: Rows, given: float | None, where: str) -> float:
    if len(core.values):
        if np.ptp(core.values) > 0.0:
            raise UserError(f"{where}, line {core.lines[-1]}: a second, different core energy: the file is damaged")
        if given is not None:
            raise UserError(f"{where} has a core energy, {core.values[0]}: leave model.system.e_core out")
        return float(core.values[0])
    if given is not None:
        return given
    if (two_body.indices == two_body.indices[:, :1]).all():
        log.warning("%s: no core energy in this lattice model; taken as 0", where)
        return 0.0
    raise UserError(f"{where}: no core energy, is the file truncated? If not, set model.system.e_core (0.0 for none)")


def _orbital_energies(rows: Rows, n_orb: int, where: str) -> NDArray[np.float64] | None:
    if not len(rows.values):
        return None
    energies = np.full(n_orb, np.nan)
    for value, index, line in zip(rows.values, rows.indices[:, 0] - 1, rows.lines, strict=True):
        if not np.isnan(energies[index]) and energies[index] != value:
            raise UserError(f"{where}, line {line}: a second, different energy of orbital {index + 1}: damaged")
        energies[index] = value
    if np.isnan(energies).any():
        line = rows.lines[-1]
        raise UserError(f"{where}, line {line}: orbital energies of some orbitals but not of all: the file is damaged")
    return energies


def _refuse_spin_orbitals(h1e: NDArray[np.float64], eri: NDArray[np.float64], where: str) -> None:
    """Refuse a file over spin orbitals made from restricted ones, which no header key tells apart.

    Its orbitals fall into two equal halves without exchange between them but with all of the Coulomb repulsion, which
    no two halves of a set of orthonormal spatial orbitals can have.
    """
    n_orb = len(h1e)
    if n_orb % 2 or not eri.any():
        return
    every = np.arange(n_orb)
    for up, down in ((every[0::2], every[1::2]), (every[: n_orb // 2], every[n_orb // 2 :])):
        uu, ud = eri[np.ix_(up, up, up, up)], eri[np.ix_(up, up, down, down)]
        if (
            not eri[np.ix_(up, down, up, down)].any()
            and uu.any()
            and np.allclose(uu, ud, atol=SYMMETRY_TOLERANCE, rtol=0)
            and np.allclose(uu, eri[np.ix_(down, down, down, down)], atol=SYMMETRY_TOLERANCE, rtol=0)
            and not h1e[np.ix_(up, down)].any()
        ):
            raise UserError(
                f"{where}: the integrals are over spin orbitals; expected spatial orbitals, export RHF or ROHF"
            )


def _consistent_labels(
    orbsym: tuple[int, ...] | None, h1e: NDArray[np.float64], eri: NDArray[np.float64], where: str
) -> tuple[int, ...] | None:
    if orbsym is None:
        return None
    irrep = np.array(orbsym) - 1
    pair = irrep[:, None] ^ irrep[None, :]
    broken = np.abs(h1e[pair != 0]).max(initial=0.0)
    four = pair[:, :, None, None] != pair[None, None, :, :]
    broken = max(broken, np.abs(eri[four]).max(initial=0.0))
    if broken > LABEL_TOLERANCE:
        log.warning("%s: ORBSYM forbids an integral of %.1e hartree; the labels are ignored", where, broken)
        return None
    return orbsym
