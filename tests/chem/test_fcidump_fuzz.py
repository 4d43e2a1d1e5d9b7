"""Damaged FCIDUMP files: refused, or read as what they were."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nnqs_lightning.chem import MolecularIntegrals, read_fcidump, write_fcidump
from nnqs_lightning.errors import UserError

CHARACTERS = " \n\t0123456789.-+eEdD,&$/()=*!xNT"

given_any = settings(
    max_examples=250, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


Case = tuple[MolecularIntegrals, str]


@pytest.fixture(scope="module")
def cases(make_integrals: Callable[..., MolecularIntegrals], tmp_path_factory: pytest.TempPathFactory) -> list[Case]:
    """Integrals and their file, without and with orbital energies; no integral is zero and no two are alike, so that
    no row can take the place of another."""
    labels = {"n_alpha": 2, "n_beta": 1, "orbsym": (1, 1, 1)}
    path = tmp_path_factory.mktemp("fuzz") / "original.FCIDUMP"
    cases = []
    for energies in (None, np.array([-1.0, 0.1, 0.5])):
        integrals = make_integrals(seed=7, mo_energy=energies, **labels)
        write_fcidump(path, integrals)
        cases.append((integrals, path.read_text()))
    return cases


def numbers_at(text: str) -> set[int]:
    """Positions in or beside a value or a number of the header: changing those is no damage, it is another file."""
    header = text.index("&END")
    spans = [match.span() for match in re.finditer(r"\d+", text[:header])]
    spans += [match.span() for match in re.finditer(r"\S+e[+-]\d\d", text)]
    return {position for start, end in spans for position in range(start - 1, end + 1)}


def outcome(folder: Path, text: str, expected: MolecularIntegrals, caplog: pytest.LogCaptureFixture) -> str:
    path = folder / "damaged.FCIDUMP"
    path.write_text(text)
    caplog.clear()
    try:
        found = read_fcidump(path)
    except UserError:
        return "refused"
    if caplog.records:
        return "warned"
    same = (
        np.array_equal(found.h1e, expected.h1e)
        and np.array_equal(found.eri, expected.eri)
        and (found.e_core, found.n_alpha, found.n_beta) == (expected.e_core, expected.n_alpha, expected.n_beta)
        and (found.mo_energy is None) == (expected.mo_energy is None)
    )
    return "same" if same else "silently different"


@given_any
@given(data=st.data(), with_energies=st.booleans())
def test_a_truncated_file_is_never_silently_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, cases: list[Case], data: st.DataObject, with_energies: bool
) -> None:
    integrals, text = cases[with_energies]
    end = data.draw(st.integers(0, len(text) - 1))
    assert outcome(tmp_path, text[:end], integrals, caplog) in ("refused", "same")


@given_any
@given(data=st.data(), character=st.sampled_from(CHARACTERS), with_energies=st.booleans(), insert=st.booleans())
def test_a_changed_character_is_never_silently_another_hamiltonian(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    cases: list[Case],
    data: st.DataObject,
    character: str,
    with_energies: bool,
    insert: bool,
) -> None:
    caplog.set_level(logging.WARNING)
    integrals, text = cases[with_energies]
    values = numbers_at(text)
    position = data.draw(st.integers(0, len(text) - 1).filter(lambda at: at not in values))
    damaged = text[:position] + character + text[position if insert else position + 1 :]
    assert outcome(tmp_path, damaged, integrals, caplog) != "silently different"


@given_any
@given(data=st.data())
def test_a_deleted_piece_is_never_silently_another_hamiltonian_unless_whole_rows_go(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, cases: list[Case], data: st.DataObject
) -> None:
    caplog.set_level(logging.WARNING)
    integrals, text = cases[False]
    values = numbers_at(text)
    start = data.draw(st.integers(text.index("&END"), len(text) - 1).filter(lambda at: at not in values))
    end = data.draw(st.integers(start + 1, min(start + 12, len(text))))
    if values.isdisjoint(range(start, end)):
        damaged = text[:start] + text[end:]
        assert outcome(tmp_path, damaged, integrals, caplog) != "silently different"


@given_any
@given(seed=st.integers(0, 2**32 - 1))
def test_order_and_symmetry_of_the_rows_do_not_matter(tmp_path: Path, cases: list[Case], seed: int) -> None:
    rng = np.random.default_rng(seed)
    expected, text = cases[True]
    head, body = text.split("&END\n")
    rows = []
    for line in body.splitlines():
        value, *indices = line.split()
        p, q, r, s = indices
        if r != "0":
            bra, ket = rng.permutation([p, q]).tolist(), rng.permutation([r, s]).tolist()
            p, q, r, s = bra + ket if rng.random() < 0.5 else ket + bra
        elif q != "0":
            p, q = rng.permutation([p, q]).tolist()
        value = value.replace("e", str(rng.choice(list("eEdD"))))
        rows.append(f"{value} {p} {q} {r} {s}")
    (tmp_path / "shuffled.FCIDUMP").write_text(head + "&END\n" + "\n".join(rng.permutation(rows)))
    found = read_fcidump(tmp_path / "shuffled.FCIDUMP")
    np.testing.assert_array_equal(found.h1e, expected.h1e)
    np.testing.assert_array_equal(found.eri, expected.eri)
    np.testing.assert_array_equal(found.mo_energy, expected.mo_energy)
