"""The namelist at the head of an FCIDUMP file (Knowles and Handy, Comput. Phys. Commun. 54, 75 (1989))."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass

from nnqs_lightning.errors import UserError

log = logging.getLogger(__name__)

START = re.compile(r"\s*[&$]FCI\b", re.IGNORECASE)
END = re.compile(r"[&$]END\b|/", re.IGNORECASE)
ENTRY = re.compile(r"([A-Za-z_]\w*)\s*=\s*([^=]*?)(?=(?:[\s,]+[A-Za-z_]\w*\s*=)|$)", re.DOTALL)
TRUE = re.compile(r"\.?T(RUE)?\.?", re.IGNORECASE)
FALSE = re.compile(r"\.?F(ALSE)?\.?", re.IGNORECASE)

SPIN_ORBITALS = ("GHF", "IGHF")
COMPLEX_ORBITALS = ("KSYM", "SYML", "SYMLZ", "TREL", "PROPBITLEN", "NPROP")
WITHOUT_CONSEQUENCE = {"IGENERAL", "STOT", "OCC", "CLOSED", "CORE", "FROZEN", "MEMORY", "ITER"}


@dataclass(frozen=True)
class Header:
    """What the namelist says."""

    n_orb: int
    n_electrons: int
    spin: int
    """MS2."""
    orbsym: tuple[int, ...] | None
    wfn_sym: int
    """ISYM."""
    unrestricted: bool
    """IUHF (or UHF): separate integrals for α and β orbitals."""
    n_lines: int
    """Lines the header takes in the file."""


def parse_header(text: str, where: str) -> Header:
    """Parse the namelist that opens ``text``.

    Accepts upper and lower case, `&FCI` and `$FCI`, the ends `&END`, `$END` and `/`, any number of lines, commas or
    blanks, `2*1` repeats and `!` comments.

    Args:
        text: the beginning of the file, the whole namelist at least.
        where: names the file in messages.

    Raises:
        UserError: no namelist, a missing or contradictory entry, spin-orbital or complex-orbital labels.
    """
    start = START.match(text)
    if start is None:
        raise UserError(f"{where}, line 1: expected `&FCI NORB=…`, is model.system.path an FCIDUMP file?")
    uncommented = re.sub(r"![^\n]*", lambda comment: " " * len(comment.group()), text)
    end = END.search(uncommented, start.end())
    if end is None:
        raise UserError(f"{where}: the header has no end (`&END` or `/`): the file is truncated or no FCIDUMP")
    n_lines = text.count("\n", 0, end.end()) + 1
    if uncommented[end.end() :].split("\n", 1)[0].strip():
        raise UserError(f"{where}, line {n_lines}: text after the end of the header, expected a new line")
    entries = _entries(uncommented[start.end() : end.start()], where)
    return _interpret(entries, n_lines, where)


def _entries(body: str, where: str) -> dict[str, list[str]]:
    entries: dict[str, list[str]] = {}
    leftover = ENTRY.sub(" ", body).replace(",", " ").strip()
    if leftover:
        raise UserError(f"{where}: '{leftover[:40]}' in the header is no `KEY=value`")
    for key, raw in ENTRY.findall(body):
        values = _values(raw, f"{where}: {key} in the header")
        if entries.setdefault(key.upper(), values) != values:
            raise UserError(f"{where}: the header gives {key} twice, with different values")
    return entries


def _values(raw: str, where: str) -> list[str]:
    values: list[str] = []
    for item in re.split(r"[\s,]+", raw.strip().rstrip(",").strip()):
        repeat, star, value = item.rpartition("*")
        if (star and not repeat.isdigit()) or not value:
            raise UserError(f"{where} is '{raw.strip()}': expected numbers, repeats written as 3*1")
        values += [value] * (int(repeat) if star else 1)
    return values


def _interpret(entries: dict[str, list[str]], n_lines: int, where: str) -> Header:
    for name in SPIN_ORBITALS:
        if _flag(entries.pop(name, ["0"]), f"{where}: {name}"):
            raise UserError(
                f"{where}: {name} says spin-orbital integrals; expected spatial orbitals, export RHF or ROHF"
            )
    for name in COMPLEX_ORBITALS:
        if set(entries.pop(name, [])) - {"0", "F", "f", ".FALSE.", ".false."}:
            raise UserError(f"{where}: {name} says complex or momentum orbitals; expected real spatial orbitals")
    n_orb = _integer(entries, "NORB", where)
    n_electrons = _integer(entries, "NELEC", where)
    if "MS2" not in entries:
        log.warning("%s: no MS2 in the header; the lowest spin is taken", where)
    spin = _integer(entries, "MS2", where, n_electrons % 2)
    wfn_sym = _integer(entries, "ISYM", where, 1) or 1  # 0 is written for "unknown"
    # Either key may be there, in Fortran's or in Boolean spelling.
    unrestricted = any(_flag(entries.pop(name, ["0"]), f"{where}: {name}") for name in ("IUHF", "UHF"))
    if n_orb < 1 or n_electrons < 0:
        raise UserError(f"{where}: NORB={n_orb} and NELEC={n_electrons}, expected a positive number of orbitals")
    orbsym = _orbsym(entries.pop("ORBSYM", None), n_orb, where)
    for name in entries.keys() - WITHOUT_CONSEQUENCE:
        log.warning("%s: %s in the header is not known and ignored", where, name)
    return Header(n_orb, n_electrons, spin, orbsym, wfn_sym, unrestricted, n_lines)


def _integer(entries: dict[str, list[str]], name: str, where: str, default: int | None = None) -> int:
    values = entries.pop(name, None)
    if values is None and default is not None:
        return default
    if values is None or len(values) != 1 or not re.fullmatch(r"[+-]?\d+", values[0]):
        raise UserError(f"{where}: {name} in the header is {values and ' '.join(values)}, expected one whole number")
    return int(values[0])


def _flag(values: list[str], where: str) -> bool:
    if len(values) == 1:
        if TRUE.fullmatch(values[0]) or re.fullmatch(r"[+-]?0*[1-9]\d*", values[0]):
            return True
        if FALSE.fullmatch(values[0]) or re.fullmatch(r"[+-]?0+", values[0]):
            return False
    raise UserError(f"{where} in the header is {' '.join(values)}, expected 0 or 1")


def _orbsym(values: list[str] | None, n_orb: int, where: str) -> tuple[int, ...] | None:
    if values is None:
        return None
    if len(values) != n_orb or not all(re.fullmatch(r"\+?\d+", value) for value in values):
        raise UserError(f"{where}: ORBSYM has {len(values)} entries, expected {n_orb} whole numbers (NORB)")
    labels = tuple(int(value) for value in values)
    if not all(1 <= label <= 8 for label in labels):
        log.warning("%s: ORBSYM has labels outside 1 … 8, which name no irrep of an Abelian group; ignored", where)
        return None
    return labels
