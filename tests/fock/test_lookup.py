"""The hash table against Python's own dictionary."""

from __future__ import annotations

import pytest
import torch

from nnqs_lightning.fock.lookup import DeterminantTable


@pytest.mark.parametrize("n_words", [1, 3])
def test_positions_equal_those_of_a_dictionary(n_words: int) -> None:
    generator = torch.Generator().manual_seed(0)
    # Few distinct values, so that rows repeat; the sign bit is in use.
    rows = torch.randint(-4, 4, (500, 2, n_words), generator=generator) << 61
    table = DeterminantTable(rows[:100])
    inserted = table.insert(rows[100:400])
    expected: dict[tuple[int, ...], int] = {}
    for row in rows[:400].flatten(1).tolist():
        expected.setdefault(tuple(row), len(expected))
    assert len(table) == len(expected)
    keys = [tuple(row) for row in rows.flatten(1).tolist()]
    assert table.find(rows).tolist() == [expected.get(key, -1) for key in keys]
    assert inserted.tolist() == [expected[key] for key in keys[100:400]]
    assert [tuple(row) for row in table.rows.flatten(1).tolist()] == list(expected)


def test_an_empty_table_finds_nothing() -> None:
    rows = torch.zeros((3, 2, 1), dtype=torch.int64)
    assert DeterminantTable(rows[:0]).find(rows).tolist() == [-1, -1, -1]
