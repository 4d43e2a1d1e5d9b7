"""Phases read what they say they read."""

from __future__ import annotations

import pytest
import torch

from nnqs_lightning.ansatz import HiddenPhase, MLPPhase, NoPhase, PhaseContext

CONTEXT = PhaseContext(n_orb=4, d_model=6)
TOKENS = torch.tensor([[0, 1, 2, 3], [3, 3, 0, 0]])


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(1)


def test_no_phase_is_zero():
    assert NoPhase(CONTEXT)(TOKENS, None).tolist() == [0.0, 0.0]


def test_mlp_phase_reads_every_spin_orbital():
    phase = MLPPhase(CONTEXT, hidden=(8,), activation=torch.nn.Tanh).double()
    before = phase(TOKENS, None)
    for orbital in range(4):
        for spin in (1, 2):
            changed = TOKENS.clone()
            changed[:, orbital] ^= spin
            assert ((phase(changed, None) - before).abs() > 1e-6).all()


@pytest.mark.parametrize("hidden", [(), (5,)])
def test_hidden_phase_sums_the_angle_of_each_token(hidden):
    phase = HiddenPhase(CONTEXT, hidden=hidden).double()
    states = torch.randn(2, 4, 6, dtype=torch.float64)
    expected = [sum(phase.network(states[n, i])[TOKENS[n, i]] for i in range(4)) for n in range(2)]
    torch.testing.assert_close(phase(TOKENS, states), torch.stack(expected))
