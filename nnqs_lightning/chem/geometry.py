"""Atoms and where they stand: element symbols, electron counts, .xyz files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from nnqs_lightning.errors import UserError

Atom = tuple[str, float, float, float]
"""Element symbol and Cartesian coordinates."""

PERIODIC_TABLE = """
    H He
    Li Be B C N O F Ne
    Na Mg Al Si P S Cl Ar
    K Ca Sc Ti V Cr Mn Fe Co Ni Cu Zn Ga Ge As Se Br Kr
    Rb Sr Y Zr Nb Mo Tc Ru Rh Pd Ag Cd In Sn Sb Te I Xe
    Cs Ba La Ce Pr Nd Pm Sm Eu Gd Tb Dy Ho Er Tm Yb Lu Hf Ta W Re Os Ir Pt Au Hg Tl Pb Bi Po At Rn
    Fr Ra Ac Th Pa U Np Pu Am Cm Bk Cf Es Fm Md No Lr Rf Db Sg Bh Hs Mt Ds Rg Cn Nh Fl Mc Lv Ts Og
"""
SYMBOLS = PERIODIC_TABLE.split()
"""Element symbols; the atomic number is the index plus one."""

NOBLE_GASES = (2, 10, 18, 36, 54, 86)

MIN_DISTANCE = 1e-3
"""Two nuclei closer than this, in the unit of the input, are taken for a mistake."""

KEY = "model.system.atoms"


def atomic_number(symbol: str) -> int:
    """Atomic number of an element symbol, any case.

    Raises:
        UserError: there is no such element.
    """
    if symbol.capitalize() not in SYMBOLS:
        raise UserError(f"unknown element '{symbol}': expected a symbol such as H or Cl, change {KEY}")
    return SYMBOLS.index(symbol.capitalize()) + 1


def core_orbitals(symbol: str) -> int:
    """Number of orbitals in the noble-gas core of an atom: 0 up to He, 1 up to Ne, 5 up to Ar, …"""
    number = atomic_number(symbol)
    return max((noble // 2 for noble in NOBLE_GASES if noble < number), default=0)


def checked_atoms(atoms: Sequence[Atom] | str | Path) -> list[Atom]:
    """Atoms from a list or from an .xyz file, with symbols in their usual spelling.

    Raises:
        UserError: an unknown element, a coordinate that is not finite, two atoms in one place, no atoms, or a file that
            is missing or malformed.
    """
    if isinstance(atoms, str | Path):
        atoms = read_xyz(Path(atoms))
    if not atoms:
        raise UserError(f"no atoms: expected a list of [symbol, x, y, z] or the path of an .xyz file in {KEY}")
    checked: list[Atom] = []
    for symbol, *position in atoms:
        x, y, z = position
        if not all(math.isfinite(value) for value in position):
            raise UserError(f"coordinates {position} of {symbol}: expected finite numbers, change {KEY}")
        checked.append((SYMBOLS[atomic_number(symbol) - 1], float(x), float(y), float(z)))
    for i, (first, *here) in enumerate(checked):
        for second, *there in checked[:i]:
            if math.dist(here, there) < MIN_DISTANCE:
                raise UserError(f"{second} and {first} both stand at {tuple(here)}: move one of them in {KEY}")
    return checked


def read_xyz(path: Path) -> list[Atom]:
    """Atoms of a plain .xyz file: the number of atoms, a comment, then one line `symbol x y z` for each atom.

    Raises:
        UserError: the file is missing or departs from this form; the message has the line number.
    """
    if not path.is_file():
        raise UserError(
            f"no file '{path}' and no list of atoms either: expected [symbol, x, y, z] for each atom, or an "
            f"existing .xyz file, in {KEY}"
        )
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise UserError(f"{path} is not a text file: expected an .xyz file in {KEY}") from None
    if not lines or not lines[0].strip().isdigit():
        raise UserError(f"{path}, line 1: expected the number of atoms, change {KEY}")
    n_atoms = int(lines[0])
    body = lines[2 : 2 + n_atoms]
    if len(body) < n_atoms:
        raise UserError(f"{path}: line 1 promises {n_atoms} atoms, the file has {len(body)}, change {KEY}")
    for number, line in enumerate(lines[2 + n_atoms :], start=3 + n_atoms):
        if line.strip():
            raise UserError(f"{path}, line {number}: text after the {n_atoms} atoms of line 1, change {KEY}")
    return [_xyz_atom(line, f"{path}, line {number}") for number, line in enumerate(body, start=3)]


def _xyz_atom(line: str, where: str) -> Atom:
    try:
        symbol, x, y, z = line.split()
        return symbol, float(x), float(y), float(z)
    except ValueError:
        raise UserError(f"{where}: '{line.strip()}' is not `symbol x y z`, change {KEY}") from None
