"""The exact sum."""

import pytest
import torch

from nnqs_lightning.ansatz.base import Ansatz
from nnqs_lightning.errors import UserError
from nnqs_lightning.fock import Sector, unpack
from nnqs_lightning.sampling import SumOverStates


class Gaussian(Ansatz):
    """An unnormalised ψ without conditionals that vanishes where orbital 0 holds two electrons."""

    def __init__(self, sector: Sector, shift: float = 0.0) -> None:
        super().__init__()
        self.sector = sector
        self.shift = shift

    def log_psi(self, determinants):
        occupation = unpack(determinants, self.sector.n_orb).double()
        places = torch.arange(self.sector.n_orb, dtype=torch.float64)
        log_amplitude = self.shift - (occupation.sum(2) @ places) ** 2 / 10
        log_amplitude = log_amplitude.masked_fill(occupation[:, 0].sum(1) == 2, -torch.inf)
        return torch.complex(log_amplitude, torch.ones_like(log_amplitude))


def test_weights_are_the_normalised_density_at_any_scale():
    sector = Sector(4, 2, 1)
    amplitudes = Gaussian(sector).log_psi(sector.determinants()).real
    alive = amplitudes > -torch.inf
    expected = (2 * amplitudes[alive]).softmax(0)
    for shift in (0.0, 1e4, -1e4):
        batch = SumOverStates(chunk_size=5).sample(Gaussian(sector, shift), seed=0, step=3)
        torch.testing.assert_close(batch.weights, expected, rtol=1e-10, atol=0)
        torch.testing.assert_close(2 * batch.log_psi.real, expected.log(), rtol=1e-9, atol=1e-9)
        assert torch.equal(batch.determinants, sector.determinants()[alive])
        assert batch.counts is None
        assert batch.step == 3
        assert batch.stats["sampling/unique"] == len(expected)


def test_large_sectors_are_refused_with_their_size():
    with pytest.raises(UserError, match=r"the sector has 36 determinants, .* raise it to 36"):
        SumOverStates(max_determinants=35).sample(Gaussian(Sector(4, 2, 2)), seed=0, step=0)


def test_a_state_that_vanishes_everywhere_is_an_error():
    with pytest.raises(UserError, match="zero or not a number"):
        SumOverStates().sample(Gaussian(Sector(4, 2, 2), -torch.inf), seed=0, step=0)
