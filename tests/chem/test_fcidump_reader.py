"""The FCIDUMP reader: every habit of the programs that write such files, on small files of our own."""

from __future__ import annotations

import gzip
import itertools
import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from nnqs_lightning.chem import MolecularIntegrals, read_fcidump, write_fcidump
from nnqs_lightning.chem.fcidump import Fcidump
from nnqs_lightning.errors import UserError

MakeIntegrals = Callable[..., MolecularIntegrals]

HEADER = " &FCI NORB=3,NELEC=4,MS2=0,\n  ORBSYM=1,1,1,\n  ISYM=1,\n &END\n"


@pytest.fixture
def integrals(make_integrals: MakeIntegrals) -> MolecularIntegrals:
    return make_integrals()


def two_body_rows(integrals: MolecularIntegrals, fold: int) -> list[tuple[float, tuple[int, ...]]]:
    """Rows (pq|rs) with 8-fold, 4-fold (bra and ket triangles) or no symmetry taken out."""
    rows = []
    for p, q, r, s in itertools.product(range(integrals.n_orb), repeat=4):
        if fold > 1 and (p < q or r < s):
            continue
        if fold == 8 and (p, q) < (r, s):
            continue
        rows.append((integrals.eri[p, q, r, s], (p + 1, q + 1, r + 1, s + 1)))
    return rows


def one_body_rows(integrals: MolecularIntegrals, upper: bool = False) -> list[tuple[float, tuple[int, ...]]]:
    pairs = [(p, q) for p in range(integrals.n_orb) for q in range(p + 1)]
    return [(integrals.h1e[p, q], (q + 1, p + 1, 0, 0) if upper else (p + 1, q + 1, 0, 0)) for p, q in pairs]


def text_of(
    rows: list[tuple[float, tuple[int, ...]]], e_core: float | None = 1 / 3, header: str = HEADER, form: str = "{!r}"
) -> str:
    if e_core is not None:
        rows = [*rows, (e_core, (0, 0, 0, 0))]
    return header + "".join(f" {form.format(float(v))} {i[0]} {i[1]} {i[2]} {i[3]}\n" for v, i in rows)


def all_rows(integrals: MolecularIntegrals, fold: int = 8) -> list[tuple[float, tuple[int, ...]]]:
    return two_body_rows(integrals, fold) + one_body_rows(integrals)


def read(tmp_path: Path, text: str, **options: float) -> MolecularIntegrals:
    path = tmp_path / "case.FCIDUMP"
    path.write_text(text)
    return read_fcidump(path, **options)


def assert_same(found: MolecularIntegrals, expected: MolecularIntegrals, rtol: float = 0.0) -> None:
    np.testing.assert_allclose(found.h1e, expected.h1e, rtol=rtol, atol=1e-14)
    np.testing.assert_allclose(found.eri, expected.eri, rtol=rtol, atol=1e-14)
    assert found.e_core == expected.e_core
    assert (found.n_alpha, found.n_beta) == (expected.n_alpha, expected.n_beta)


@pytest.mark.parametrize("name", ["plain.FCIDUMP", "packed.FCIDUMP.gz"])
@pytest.mark.parametrize("seed", range(3))
def test_what_is_written_reads_back_bit_for_bit(
    tmp_path: Path, make_integrals: MakeIntegrals, name: str, seed: int
) -> None:
    labels = {"orbsym": (1, 1, 1, 1), "mo_energy": np.array([-1.1, 0.1, 1 / 3, np.pi])}
    original = make_integrals(4, seed, n_alpha=3, n_beta=1, **labels)
    write_fcidump(tmp_path / name, original)
    found = read_fcidump(tmp_path / name)
    np.testing.assert_array_equal(found.h1e, original.h1e)
    np.testing.assert_array_equal(found.eri, original.eri)
    np.testing.assert_array_equal(found.mo_energy, original.mo_energy)
    assert (found.e_core, found.orbsym) == (original.e_core, original.orbsym)
    assert (found.n_alpha, found.n_beta) == (3, 1)
    assert [path.name for path in tmp_path.iterdir()] == [name], "temporary files are left behind"


@pytest.mark.parametrize("fold", [8, 4, 1])
def test_any_written_out_symmetry_gives_the_same_integrals(
    tmp_path: Path, integrals: MolecularIntegrals, fold: int
) -> None:
    assert_same(read(tmp_path, text_of(all_rows(integrals, fold))), integrals)


def test_one_body_rows_may_stand_in_either_triangle(tmp_path: Path, integrals: MolecularIntegrals) -> None:
    lower, upper = one_body_rows(integrals), one_body_rows(integrals, upper=True)
    mixed = [lower[0], upper[1], *lower[2:4], *upper[4:]]
    for rows in (upper, mixed, lower + [row for row in upper if row[1][0] != row[1][1]]):
        assert_same(read(tmp_path, text_of(two_body_rows(integrals, 8) + rows)), integrals)


def test_orbital_energies_are_not_the_core_energy(tmp_path: Path, integrals: MolecularIntegrals) -> None:
    energies = [(-1.5, (1, 0, 0, 0)), (-0.5, (2, 0, 0, 0)), (0.25, (3, 0, 0, 0))]
    core = (1 / 3, (0, 0, 0, 0))
    for tail in ([*energies, core], [core, *energies]):
        found = read(tmp_path, text_of(all_rows(integrals) + tail, e_core=None))
        assert_same(found, integrals)
        assert found.mo_energy is not None
        np.testing.assert_array_equal(found.mo_energy, [-1.5, -0.5, 0.25])


@pytest.mark.parametrize("letter", ["D", "d", "E", "e"])
def test_fortran_exponents_are_read(tmp_path: Path, integrals: MolecularIntegrals, letter: str) -> None:
    text = text_of(all_rows(integrals), header="", form="{:.16e}").replace("e", letter)
    assert_same(read(tmp_path, HEADER + text), integrals, rtol=1e-15)


def test_an_exponent_of_three_digits_without_letter_is_read(tmp_path: Path) -> None:
    text = HEADER.replace("NORB=3", "NORB=1").replace("1,1,1", "1").replace("NELEC=4", "NELEC=2")
    found = read(tmp_path, text + "0.5-100 1 1 1 1\n-1.25+000 1 1 0 0\n0.0 0 0 0 0\n")
    assert found.eri[0, 0, 0, 0] == 0.5e-100
    assert found.h1e[0, 0] == -1.25


@pytest.mark.parametrize(
    "header",
    [
        " &FCI NORB=3,NELEC=4,MS2=0,\n  ORBSYM=1,1,1,\n  ISYM=1,\n $END\n",
        " &FCI NORB=3,NELEC=4,MS2=0,\n  ORBSYM=1,1,1,\n  ISYM=1\n /\n",
        " $FCI NORB=3,NELEC=4,MS2=0 $END\n",
        "&fci norb=3 nelec=4 ms2=0 orbsym=1 1 1 isym=1 &end\n",
        "&FCI NORB= 3 ,NELEC =4 , MS2 = 0, ORBSYM=3*1,ISYM=1,/\n",
        "\n &FCI\n NORB=3\n ,\n NELEC=4\n ,MS2\n =\n 0\n ORBSYM=\n 1,\n 2*1\n ,ISYM=0\n UHF=.FALSE.,\n\n &END\n",
        "&FCI NORB=3, ! three orbitals / no end\n NELEC=4, MS2=0, &END\n",
        "&FCI NORB=3,NELEC=4,MS2=0,ORBSYM=1,1,1,ISYM=1,IUHF=0,STOT=1,\n&END\n",
    ],
)
def test_any_spelling_of_the_header_is_read(tmp_path: Path, integrals: MolecularIntegrals, header: str) -> None:
    assert_same(read(tmp_path, text_of(all_rows(integrals), header=header)), integrals)


def test_blank_lines_and_line_ends_do_not_matter(tmp_path: Path, integrals: MolecularIntegrals) -> None:
    lines = text_of(all_rows(integrals)).splitlines()
    half = len(lines) // 2
    text = "\n".join([*lines[:half], "", "   ", *lines[half:]])
    assert_same(read(tmp_path, text), integrals)
    (tmp_path / "dos.FCIDUMP").write_bytes(text.replace("\n", "\r\n").encode())
    assert_same(read_fcidump(tmp_path / "dos.FCIDUMP"), integrals)


def test_commas_between_the_columns_are_read(tmp_path: Path, integrals: MolecularIntegrals) -> None:
    body = text_of(all_rows(integrals), header="")
    assert_same(read(tmp_path, HEADER + body.strip().replace(" ", ", ").replace("\n,", "\n")), integrals)


def test_irreps_are_kept_when_they_agree_with_the_integrals(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [(0.5, (1, 1, 1, 1)), (0.4, (2, 2, 1, 1)), (0.1, (2, 1, 2, 1)), (0.45, (2, 2, 2, 2))]
    rows += [(-1.0, (1, 1, 0, 0)), (-0.5, (2, 2, 0, 0))]
    header = "&FCI NORB=2,NELEC=2,MS2=0,ORBSYM=1,5,ISYM=5,&END\n"
    found = read(tmp_path, text_of(rows, header=header))
    assert (found.orbsym, found.wfn_sym) == ((1, 5), 5)
    broken = read(tmp_path, text_of([*rows, (0.2, (2, 1, 0, 0))], header=header))
    assert (broken.orbsym, broken.wfn_sym) == (None, 1)
    assert "ORBSYM forbids" in caplog.text


def test_irreps_above_eight_are_dropped_and_said_so(
    tmp_path: Path, integrals: MolecularIntegrals, caplog: pytest.LogCaptureFixture
) -> None:
    found = read(tmp_path, text_of(all_rows(integrals), header=HEADER.replace("1,1,1", "1,14,15")))
    assert_same(found, integrals)
    assert found.orbsym is None
    assert "outside 1 … 8" in caplog.text


def test_electrons_and_spin_can_be_chosen_by_the_user(tmp_path: Path, integrals: MolecularIntegrals) -> None:
    text = text_of(all_rows(integrals))
    assert read(tmp_path, text, spin=2).n_alpha == 3
    ion = read(tmp_path, text, n_electrons=3, spin=1)
    assert (ion.n_alpha, ion.n_beta) == (2, 1)
    for wrong in ({"spin": 1}, {"n_electrons": 3}, {"n_electrons": 8}, {"spin": 4}, {"spin": -2}):
        with pytest.raises(UserError, match=r"model\.system\.n_electrons"):
            read(tmp_path, text, **wrong)


def test_complex_values_are_read_only_when_real(tmp_path: Path, integrals: MolecularIntegrals) -> None:
    rows = all_rows(integrals)
    for form in ("({!r},0.0)", "( {!r} , -0.0D0 )", "{!r} 0.0"):
        assert_same(read(tmp_path, text_of(rows, form=form)), integrals)
    for form in ("({!r},1.0e-3)", "{!r} 0.001"):
        with pytest.raises(UserError, match=r"line 5: complex value"):
            read(tmp_path, text_of(rows, form=form))


def unrestricted(integrals: MolecularIntegrals, other: MolecularIntegrals, header: str) -> str:
    zero = (0.0, (0, 0, 0, 0))
    sections = [two_body_rows(i, 8) for i in (integrals, other, integrals)]
    sections += [one_body_rows(i) for i in (integrals, other)]
    return text_of([row for section in sections for row in [*section, zero]], header=header)


@pytest.mark.parametrize("flag", ["IUHF=1", "UHF=.TRUE.", "IUHF=T"])
def test_unrestricted_files_are_read_only_when_restricted_in_fact(
    tmp_path: Path, integrals: MolecularIntegrals, make_integrals: MakeIntegrals, flag: str
) -> None:
    header = HEADER.replace("ISYM", f"{flag},ISYM")
    assert_same(read(tmp_path, unrestricted(integrals, integrals, header)), integrals)
    with pytest.raises(UserError, match="α and β orbitals differ"):
        read(tmp_path, unrestricted(integrals, make_integrals(seed=1), header))
    with pytest.raises(UserError, match="six sections"):
        read(tmp_path, text_of(all_rows(integrals), header=header))


def test_an_unrestricted_file_without_its_flag_is_refused(
    tmp_path: Path, integrals: MolecularIntegrals, make_integrals: MakeIntegrals
) -> None:
    for other in (integrals, make_integrals(seed=1)):
        with pytest.raises(UserError, match=r"second, different core energy|equal for real spatial orbitals"):
            read(tmp_path, unrestricted(integrals, other, HEADER))


@pytest.mark.parametrize("interleaved", [True, False])
def test_spin_orbital_files_are_refused(tmp_path: Path, integrals: MolecularIntegrals, interleaved: bool) -> None:
    same_spin = np.eye(2)
    spatial_first = "pq,st->psqt" if interleaved else "pq,st->sptq"
    h1e = np.einsum(spatial_first, integrals.h1e, same_spin).reshape(6, 6)
    order = "pqrs,xy,zw->pxqyrzsw" if interleaved else "pqrs,xy,zw->xpyqzrws"
    eri = np.einsum(order, integrals.eri, same_spin, same_spin).reshape(6, 6, 6, 6)
    write_fcidump(tmp_path / "ghf.FCIDUMP", MolecularIntegrals(h1e, eri, 0.0, n_alpha=2, n_beta=2))
    with pytest.raises(UserError, match="over spin orbitals"):
        read_fcidump(tmp_path / "ghf.FCIDUMP")


@pytest.mark.parametrize("label", ["IGHF=1", "KSYM=0,1,0", "SYMLZ=0,1,-1", "TREL=.TRUE."])
def test_labels_of_spin_or_complex_orbitals_are_refused(
    tmp_path: Path, integrals: MolecularIntegrals, label: str
) -> None:
    with pytest.raises(UserError, match=label.split("=")[0]):
        read(tmp_path, text_of(all_rows(integrals), header=HEADER.replace("ISYM", f"{label},ISYM")))


@pytest.mark.parametrize("fold", [4, 1])
def test_integrals_without_the_symmetry_of_real_orbitals_are_refused(
    tmp_path: Path, integrals: MolecularIntegrals, fold: int
) -> None:
    rows = all_rows(integrals, fold)
    at = next(i for i, (_, index) in enumerate(rows) if index == (2, 1, 1, 1))
    conflict = [*rows[:at], (rows[at][0] + 1e-3, rows[at][1]), *rows[at + 1 :]]
    with pytest.raises(UserError, match=r"lines \d+ and \d+: .* equal for real spatial orbitals"):
        read(tmp_path, text_of(conflict))
    with pytest.raises(UserError, match=r"line \d+: the file writes out symmetric entries, but not that of 1"):
        read(tmp_path, text_of(rows[:at] + rows[at + 1 :]))


def test_two_values_for_one_integral_are_refused(tmp_path: Path, integrals: MolecularIntegrals) -> None:
    rows = all_rows(integrals)
    assert_same(read(tmp_path, text_of([*rows, rows[0], rows[-1]])), integrals)
    last = len(HEADER.splitlines()) + len(rows) + 1
    for again in ((9.0, (1, 1, 1, 1)), (9.0, (1, 3, 0, 0))):
        with pytest.raises(UserError, match=rf"lines \d+ and {last}: .* and 9.0 for integrals that are equal"):
            read(tmp_path, text_of([*rows, again]))
    with pytest.raises(UserError, match=rf"line {last + 1}: a second, different core energy"):
        read(tmp_path, text_of([*rows, (9.0, (0, 0, 0, 0))]))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("0.5 1 1 1", "line 5: .*not a value and four indices"),
        ("0.5 1 1 1 1 1 1", "line 5: .*not a value and four indices"),
        ("0.5 1 1 1 x", "line 5: .*not a value and four indices"),
        ("nan 1 1 1 1", "line 5: .*not a value and four indices"),
        ("************* 1 1 1 1", "line 5: .*not a value and four indices"),
        ("1e999 1 1 1 1", "line 5: the value 1e999 is too large"),
        ("0.5 1 1 1 4", "line 5: an orbital above NORB=3"),
        ("0.5 -1 1 1 1", "line 5: .*not a value and four indices"),
        ("0.5 1 1 1 0", "line 5: a zero among the indices"),
        ("0.5 0 1 0 0", "line 5: a zero among the indices"),
        ("0.5 1 0 1 1", "line 5: a zero among the indices"),
        ("0.5 1.0 1 1 1", "line 5: .*not a value and four indices"),
        ("0.5 1 0 0 0", "line 5: orbital energies of some orbitals"),
        ("! 0.5 1 1 1 1", "line 5: .*not a value and four indices"),
    ],
)
def test_a_damaged_row_is_refused_with_its_line_number(
    tmp_path: Path, integrals: MolecularIntegrals, damage: str, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        read(tmp_path, HEADER + damage + "\n" + text_of(all_rows(integrals), header=""))


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("NORB=3,NELEC=4,MS2=0\n", "line 1: expected `&FCI"),
        (" &FCI NORB=3,NELEC=4,MS2=0\n", "no end"),
        (" &FCI NELEC=4,MS2=0 /\n", "NORB in the header is None"),
        (" &FCI NORB=3,MS2=0 /\n", "NELEC in the header is None"),
        (" &FCI NORB=3,NELEC=4.5,MS2=0 /\n", "NELEC in the header is 4.5"),
        (" &FCI NORB=3,NELEC=4,MS2=1 /\n", "4 electrons with 2S = 1"),
        (" &FCI NORB=3,NELEC=4,MS2=0,ORBSYM=1,1 /\n", "ORBSYM has 2 entries, expected 3"),
        (" &FCI NORB=3,NELEC=4,MS2=0,ORBSYM=3*,ISYM=1 /\n", "repeats written as"),
        (" &FCI NORB=3,NORB=4,NELEC=4,MS2=0 /\n", "gives NORB twice"),
        (" &FCI NORB=3,NELEC=4,MS2=0,nonsense /\n", "MS2 in the header is 0 nonsense"),
        (" &FCI NORB=3,NELEC=4,MS2=0 / 0.5 1 1 1 1\n", "line 1: text after the end of the header"),
        (" &FCI NORB=4,NELEC=4,MS2=0 /\n", "orbital 4 of NORB=4 is in no row"),
    ],
)
def test_a_damaged_header_is_refused(tmp_path: Path, integrals: MolecularIntegrals, header: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read(tmp_path, text_of(all_rows(integrals), header=header))


def test_a_missing_core_energy_is_zero_for_lattices_only(
    tmp_path: Path, integrals: MolecularIntegrals, caplog: pytest.LogCaptureFixture
) -> None:
    text = text_of(all_rows(integrals), e_core=None)
    with pytest.raises(UserError, match=r"model\.system\.e_core"):
        read(tmp_path, text)
    assert read(tmp_path, text, e_core=-3.0).e_core == -3.0
    with pytest.raises(UserError, match=r"leave model\.system\.e_core out"):
        read(tmp_path, text_of(all_rows(integrals)), e_core=0.0)
    lattice = "&FCI NORB=2 ,NELEC=2 ,MS2=0,\nORBSYM= 1, 1,\nISYM=1,\n&END\n4.0 1 1 1 1\n4.0 2 2 2 2\n-1. 2 1 0 0\n"
    with caplog.at_level(logging.WARNING):
        found = read(tmp_path, lattice)
    assert found.e_core == 0.0
    assert "no core energy" in caplog.text
    np.testing.assert_array_equal(found.h1e, [[0.0, -1.0], [-1.0, 0.0]])


def test_files_that_are_no_text_or_cut_short_are_refused(tmp_path: Path, integrals: MolecularIntegrals) -> None:
    path = tmp_path / "case.FCIDUMP.gz"
    with pytest.raises(UserError, match=r"model\.system\.path"):
        read_fcidump(path)
    with pytest.raises(UserError, match=r"model\.system\.path"):
        Fcidump(path)
    packed = gzip.compress(text_of(all_rows(integrals)).encode())
    path.write_bytes(packed[:-20])
    with pytest.raises(UserError, match="no complete gzip file"):
        read_fcidump(path)
    path.write_bytes(packed[:60] + bytes([packed[60] ^ 255]) + packed[61:])
    with pytest.raises(UserError, match="no complete gzip file"):
        read_fcidump(path)
    path.write_bytes(HEADER.encode() + b"\xff\xfe")
    with pytest.raises(UserError, match="line 5: not plain text"):
        read_fcidump(path)
    for empty in ("", HEADER, HEADER + "\n\n"):
        with pytest.raises(UserError, match=r"truncated|expected `&FCI"):
            read(tmp_path, empty)
