"""Atoms: elements, cores and .xyz files."""

from __future__ import annotations

from pathlib import Path

import pytest

from nnqs_lightning.chem.geometry import SYMBOLS, atomic_number, checked_atoms, core_orbitals, read_xyz
from nnqs_lightning.errors import UserError

WATER = "3\nwater\nO 0.0 0.0 0.1\nh 0.0 0.7 -0.5\nH 0.0 -0.7 -0.5\n"


def test_atomic_numbers_agree_with_pyscf() -> None:
    from pyscf.data.elements import ELEMENTS

    assert ELEMENTS[1 : len(SYMBOLS) + 1] == SYMBOLS
    assert [atomic_number(symbol) for symbol in ("H", "cl", "FE", "Og")] == [1, 17, 26, 118]


def test_cores_are_noble_gases() -> None:
    cores = [core_orbitals(symbol) for symbol in ("H", "He", "Li", "Ne", "Na", "Ar", "K", "Kr", "Rb", "Cs", "Rn", "U")]
    assert cores == [0, 0, 1, 1, 5, 5, 9, 9, 18, 27, 27, 43]


def test_an_xyz_file_gives_the_atoms_of_the_list(tmp_path: Path) -> None:
    path = tmp_path / "water.xyz"
    path.write_text(WATER + "\n\n")
    atoms = [("O", 0.0, 0.0, 0.1), ("H", 0.0, 0.7, -0.5), ("H", 0.0, -0.7, -0.5)]
    assert checked_atoms(str(path)) == atoms
    assert checked_atoms(atoms) == atoms


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "line 1: expected the number of atoms"),
        ("O 0 0 0\n", "line 1: expected the number of atoms"),
        ("4" + WATER[1:], "promises 4 atoms, the file has 3"),
        ("2" + WATER[1:], "line 5: text after the 2 atoms"),
        (WATER.replace("0.7 -0.5\nH", "0.7\nH"), "line 4: 'h 0.0 0.7' is not"),
        (WATER.replace("0.1", "zero"), "line 3: 'O 0.0 0.0 zero' is not"),
        (WATER.replace("0.1\n", "0.1 0.3\n"), "line 3: .* is not"),
    ],
)
def test_a_damaged_xyz_file_is_refused_with_its_line(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "water.xyz"
    path.write_text(content)
    with pytest.raises(UserError, match=message):
        read_xyz(path)


@pytest.mark.parametrize(
    ("atoms", "message"),
    [
        ([("Xx", 0.0, 0.0, 0.0)], "unknown element 'Xx'"),
        ([], "no atoms"),
        ([("H", 0.0, float("nan"), 0.0)], "finite"),
        ([("H", 0.0, 0.0, 0.0), ("He", 0.0, 0.0, 0.0)], "H and He both stand at"),
        ("missing.xyz", r"no file 'missing\.xyz'"),
    ],
)
def test_impossible_atoms_are_refused_naming_the_key(atoms: list | str, message: str) -> None:
    with pytest.raises(UserError, match=rf"{message}.*model\.system\.atoms"):
        checked_atoms(atoms)
