"""Representatives of spin-flip pairs, against counting by hand and round trips."""

from __future__ import annotations

import pytest
import torch

from nnqs_lightning.errors import UserError
from nnqs_lightning.fock import Sector, pack, unpack
from nnqs_lightning.fock.spin_flip import expand, flip, fold, is_representative, multiplicities, represent


@pytest.mark.parametrize("n_orb", [5, 64, 70])
def test_one_of_each_pair_represents_it_and_it_is_the_larger_alpha_string(n_orb):
    generator = torch.Generator().manual_seed(n_orb)
    occupation = torch.randint(0, 2, (200, n_orb, 2), generator=generator)
    occupation[:50, 1:] = 0  # differences in the lowest orbital alone, and none
    strings = [[int("".join(map(str, row[::-1])), 2) for row in occupation[..., s].tolist()] for s in (0, 1)]
    determinants = pack(occupation)
    assert is_representative(determinants).tolist() == [a >= b for a, b in zip(*strings, strict=True)]
    representatives, flipped = represent(determinants)
    assert is_representative(representatives).all()
    torch.testing.assert_close(
        torch.where(flipped[:, None, None], flip(representatives), representatives), determinants
    )
    assert torch.equal(represent(flip(determinants))[0], representatives)


@pytest.mark.parametrize("parity", [1, -1])
def test_a_sector_of_one_parity_lists_as_many_combinations_as_it_counts(parity):
    sector = Sector(5, 2, 2, parity)
    determinants = sector.determinants()
    assert len(determinants) == sector.size == (55 if parity == 1 else 45)
    assert is_representative(determinants).all()
    assert len(expand(determinants, parity).determinants) == (100 if parity == 1 else 90)
    assert (determinants == sector.aufbau()).flatten(1).all(1).sum() == 1


@pytest.mark.parametrize("parity", [1, -1])
def test_folding_undoes_expansion_and_projects_any_vector_on_one_parity(parity):
    whole = Sector(4, 2, 2).determinants()
    vector = torch.randn(len(whole), dtype=torch.complex128, generator=torch.Generator().manual_seed(0))
    named, amplitudes = fold(whole, vector, parity)
    pairs = expand(named, parity)
    projected = dict(
        zip(map(str, pairs.determinants.tolist()), (pairs.share * amplitudes[pairs.member]).tolist(), strict=True)
    )
    flipped = {str(d): v for d, v in zip(flip(whole).tolist(), vector.tolist(), strict=True)}
    for determinant, value in zip(whole.tolist(), vector.tolist(), strict=True):
        expected = (value + parity * flipped[str(determinant)]) / 2
        assert projected.get(str(determinant), 0.0) == pytest.approx(expected)
    again, back = fold(pairs.determinants, pairs.share * amplitudes[pairs.member], parity)
    assert torch.equal(again, named)
    torch.testing.assert_close(back, amplitudes)


def test_closed_shells_stand_for_themselves():
    determinants = Sector(4, 2, 2).determinants()
    occupation = unpack(determinants, 4)
    closed = (occupation[..., 0] == occupation[..., 1]).all(1)
    assert closed.sum() == 6
    assert torch.equal(multiplicities(determinants) == 1, closed)


@pytest.mark.parametrize(("numbers", "parity"), [((4, 2, 1), 1), ((2, 2, 2), -1)])
def test_parities_that_no_state_has_are_refused(numbers, parity):
    with pytest.raises(UserError, match="spin_flip"):
        Sector(*numbers, parity)
