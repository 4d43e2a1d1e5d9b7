"""The disk cache: keys, damage, concurrency."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from nnqs_lightning.chem import MolecularIntegrals, Molecule, cache
from nnqs_lightning.chem.cache import cache_dir, cache_key, cached, dump_integrals, load_integrals

HELIUM = [("He", 0.0, 0.0, 0.0)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NNQS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def number(compute: Callable[[], float], name: str = "entry.json") -> float:
    return cached(
        name, compute, lambda value: json.dumps(value).encode(), lambda text: float(json.loads(text)), "number"
    )


def fail() -> float:
    raise AssertionError("computed although it is cached")


def test_a_value_is_computed_once(folder: Path) -> None:
    assert number(lambda: 1.5) == 1.5
    assert number(fail) == 1.5
    assert [path.name for path in folder.iterdir()] == ["entry.json"], "temporary files are left behind"


def test_a_damaged_entry_is_computed_again_with_a_warning(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    number(lambda: 1.5)
    (folder / "entry.json").write_text("1.")
    (folder / "entry.json").write_text("{")
    assert number(lambda: 2.5) == 2.5
    assert "is damaged" in caplog.text
    assert number(fail) == 2.5


def test_of_two_concurrent_writers_the_first_wins(folder: Path) -> None:
    def slow() -> float:
        number(lambda: 1.5)  # another process finishes while this one computes
        return 2.5

    assert number(slow) == 1.5
    assert number(fail) == 1.5


def test_a_folder_that_cannot_be_written_costs_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("NNQS_CACHE", str(tmp_path / "file" / "cache"))
    assert number(lambda: 1.5) == 1.5
    assert "could not be cached" in caplog.text


def test_a_file_system_without_hard_links_will_do(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(cache.os, "link", no_links)
    assert number(lambda: 1.5) == 1.5
    assert number(fail) == 1.5
    assert [path.name for path in folder.iterdir()] == ["entry.json"]


def test_the_key_depends_on_inputs_format_and_pyscf(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {cache_key({"a": 1}), cache_key({"a": 2}), cache_key({"b": 1})}
    monkeypatch.setattr(cache, "FORMAT_VERSION", -1)
    keys.add(cache_key({"a": 1}))
    monkeypatch.setattr(cache.metadata, "version", lambda _: "0.0")
    keys.add(cache_key({"a": 1}))
    assert len(keys) == 5
    assert cache_key({"a": 1, "b": 2}) == cache_key({"b": 2, "a": 1})


def test_the_folder_is_that_of_the_platform_unless_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("NNQS_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cache.sys, "platform", "linux")
    assert cache_dir() == tmp_path / "nnqs_lightning"
    monkeypatch.setenv("NNQS_CACHE", "~/elsewhere")
    assert cache_dir() == Path.home() / "elsewhere"


def test_integrals_come_back_bit_for_bit(make_integrals: Callable[..., MolecularIntegrals]) -> None:
    rng = np.random.default_rng(0)
    labels = {"orbsym": (1, 5, 1, 3), "mo_energy": rng.normal(size=4), "mo_coeff": rng.normal(size=(6, 4))}
    for fields in ({}, {**labels, "point_group": "D2h", "wfn_sym": 4}):
        original = make_integrals(4, **fields)
        found = load_integrals(dump_integrals(original))
        assert found.digest() == original.digest()
        assert (found.orbsym, found.point_group, found.wfn_sym) == (
            original.orbsym,
            original.point_group,
            original.wfn_sym,
        )
        for name in ("mo_energy", "mo_coeff"):
            if fields:
                np.testing.assert_array_equal(getattr(found, name), getattr(original, name))
            else:
                assert getattr(found, name) is None


def test_cut_integrals_are_computed_again(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    digest = Molecule(HELIUM, basis="6-31g").integrals().digest()
    (entry,) = folder.glob("*.integrals.npz")
    whole = entry.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:400] + bytes([whole[400] ^ 1]) + whole[401:], b""):
        caplog.clear()
        entry.write_bytes(damaged)
        with caplog.at_level(logging.WARNING):
            assert Molecule(HELIUM, basis="6-31g").integrals().digest() == digest
        assert "damaged" in caplog.text
        assert entry.read_bytes() == whole


def test_every_input_of_a_molecule_has_its_own_entry(folder: Path) -> None:
    variants = [
        Molecule(HELIUM),
        Molecule(HELIUM, basis="6-31g"),
        Molecule(HELIUM, basis="6-31g", spin=2),
        Molecule(HELIUM, charge=1, spin=1),
        Molecule([("H", 0.0, 0.0, 0.0), ("H", 0.0, 0.0, 1.0)]),
        Molecule([("H", 0.0, 0.0, 0.0), ("H", 0.0, 0.0, 1.0)], unit="bohr"),
        Molecule(HELIUM, basis="6-31g", symmetry=True),
    ]
    for molecule in variants:
        molecule.integrals()
        molecule.integrals()
    assert len(list(folder.glob("*.integrals.npz"))) == len(variants)


def test_concurrent_processes_see_the_same_orbitals(folder: Path) -> None:
    code = (
        "from nnqs_lightning.chem import Molecule;"
        "print(Molecule([('N', 0.0, 0.0, 0.0), ('N', 0.0, 0.0, 1.1)]).integrals().digest())"
    )
    processes = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(2)]
    digests = {process.communicate()[0] for process in processes}
    assert all(process.returncode == 0 for process in processes)
    assert len(digests) == 1
