"""Systems as they are plugged in from the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from jsonargparse import ArgumentParser

from nnqs_lightning.chem import Fcidump, HubbardChain, HydrogenChain, Molecule, System


def parsed(*arguments: str) -> Any:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(System, "system", required=True)
    namespace = parser.parse_args(list(arguments))
    return parser.instantiate_classes(namespace).system


def test_a_molecule_is_written_as_a_list_or_a_path(tmp_path: Path) -> None:
    (tmp_path / "n2.xyz").write_text("2\n\nN 0 0 0\nN 0 0 1.1\n")
    by_list = parsed("--system=Molecule", "--system.atoms=[[N, 0, 0, 0], [N, 0, 0, 1.1]]")
    by_path = parsed("--system=Molecule", f"--system.atoms={tmp_path / 'n2.xyz'}")
    assert isinstance(by_list, Molecule)
    assert by_list.atoms == by_path.atoms == [("N", 0.0, 0.0, 0.0), ("N", 0.0, 0.0, 1.1)]


def test_nested_options_reach_the_molecule() -> None:
    molecule = parsed(
        "--system=nnqs_lightning.chem.Molecule",
        "--system.atoms=[[N, 0, 0, 0], [N, 0, 0, 1.1]]",
        "--system.active_space={n_electrons: 6, n_orbitals: 6}",
        "--system.symmetry=D2h",
    )
    assert molecule.active_space.size == 6
    assert molecule.symmetry == "D2h"
    assert (
        parsed("--system=Molecule", "--system.atoms=[[He, 0, 0, 0]]", "--system.frozen_core=auto").frozen_core == "auto"
    )


def test_every_system_is_found_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "x.FCIDUMP").write_text("")
    assert isinstance(parsed("--system=HubbardChain", "--system.n_sites=4"), HubbardChain)
    assert isinstance(parsed("--system=HydrogenChain", "--system.n_atoms=4"), HydrogenChain)
    assert isinstance(parsed("--system=Fcidump", f"--system.path={tmp_path / 'x.FCIDUMP'}"), Fcidump)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--system=Molecule", "--system.atoms=[[Xx, 0, 0, 0]]"], "unknown element 'Xx'"),
        (["--system=Molecule", "--system.atoms=[[N, 0, 0, 0]]"], r"model\.system\.spin"),
        (["--system=Molecule", "--system.atoms=none.xyz"], r"model\.system\.atoms"),
        (["--system=Fcidump", "--system.path=none"], r"model\.system\.path"),
        (["--system=Molecule", "--system.atoms=[[He, 0, 0, 0]]", "--system.unit=nm"], "unit"),
        (["--system=Molecule", "--system.atoms=[[He, 0, 0, 0]]", "--system.bassis=sto-3g"], "bassis"),
    ],
)
def test_bad_input_is_refused_before_anything_is_computed(arguments: list[str], message: str) -> None:
    with pytest.raises(Exception, match=message):
        parsed(*arguments)
