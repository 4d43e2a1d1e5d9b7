"""Laws of the transformer wave function that hold whatever the positional scheme."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from nnqs_lightning.ansatz import (
    AsGiven,
    ExplicitOrder,
    FiedlerOrder,
    HiddenPhase,
    MLPPhase,
    NoPhase,
    RandomOrder,
    Reversed,
    TransformerAnsatz,
)
from nnqs_lightning.errors import UserError
from nnqs_lightning.fock import Sector, unpack
from nnqs_lightning.nn.positional import Rotary


def build(integrals, **options):
    torch.manual_seed(3)
    ansatz = TransformerAnsatz(integrals, **{"d_model": 16, "n_heads": 2, **options}).double()
    # Away from the flat start, so that a wrong conditional shows.
    torch.nn.init.normal_(ansatz.decoder.head.weight, std=0.7)
    return ansatz


@pytest.mark.parametrize(("n_alpha", "n_beta"), [(2, 2), (3, 1), (4, 4), (5, 0)])
def test_probabilities_of_the_sector_sum_to_one(make_integrals, n_alpha, n_beta):
    ansatz = build(make_integrals(5, n_alpha, n_beta))
    log_psi = ansatz.log_psi(Sector(5, n_alpha, n_beta).determinants())
    assert (2 * log_psi.real).exp().sum().item() == pytest.approx(1, abs=1e-12)
    assert torch.isfinite(torch.view_as_real(log_psi)).all()


def test_determinants_outside_the_sector_vanish_without_nan_gradients(make_integrals):
    ansatz = build(make_integrals(4, 2, 1))
    outside = torch.cat([Sector(4, a, b).determinants() for a, b in [(1, 2), (4, 4), (0, 0), (3, 1)]])
    inside = ansatz.sector.determinants()
    log_psi = ansatz(torch.cat([outside, inside]))
    assert (log_psi.real[: len(outside)] == -math.inf).all()
    log_psi[len(outside) :].abs().sum().backward()
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in ansatz.parameters())


def test_orbitals_beyond_one_word_decode():
    n_orb = 66
    # Only the sizes are read; real integrals of this size would take 150 MB.
    integrals = SimpleNamespace(n_orb=n_orb, n_alpha=1, n_beta=1, orbsym=None, orbital_features={})
    ansatz = TransformerAnsatz(integrals, d_model=8, n_heads=2, n_layers=1).double()
    tokens = torch.zeros((1, n_orb), dtype=torch.int64)
    tokens[0, [0, 1]] = torch.tensor([1, 2])  # reversed order: orbitals 65 and 64, in the second word
    determinants = ansatz.to_determinants(tokens)
    assert determinants.shape == (1, 2, 2)
    assert determinants[0, 0].tolist() == [0, 2]
    assert determinants[0, 1].tolist() == [0, 1]
    assert torch.equal(ansatz.to_tokens(determinants), tokens)
    assert torch.isfinite(ansatz.log_psi(determinants).real).all()


@pytest.mark.parametrize("phase", [MLPPhase, HiddenPhase, NoPhase])
def test_log_psi_is_half_log_probability_plus_phase(make_integrals, phase):
    ansatz = build(make_integrals(4, 2, 1), phase=phase)
    determinants = ansatz.sector.determinants()
    tokens = ansatz.to_tokens(determinants)
    log_p = ansatz.conditionals(tokens).gather(-1, tokens[..., None]).squeeze(-1).sum(-1)
    log_psi = ansatz.log_psi(determinants)
    assert log_psi.dtype == torch.complex128
    torch.testing.assert_close(log_psi.real, log_p / 2)
    torch.testing.assert_close(log_psi.imag, ansatz.phase(determinants))


@pytest.mark.parametrize("order", [AsGiven, FiedlerOrder, lambda i: RandomOrder(i, 7)])
def test_incremental_decoding_reaches_every_determinant_with_its_probability(make_integrals, order):
    ansatz = build(make_integrals(4, 2, 1), orbital_order=order)
    state = ansatz.begin()
    prefixes = torch.zeros((1, 0), dtype=torch.int64)
    log_p = torch.zeros(1, dtype=torch.float64)
    for _ in range(ansatz.n_steps):
        conditionals = ansatz.log_conditionals(state)
        assert conditionals.shape == (len(state), 4)
        parents, tokens = torch.isfinite(conditionals).nonzero(as_tuple=True)
        log_p = log_p[parents] + conditionals[parents, tokens]
        prefixes = torch.cat([prefixes[parents], tokens[:, None]], dim=1)
        state = ansatz.advance(state, parents, tokens)
    determinants = ansatz.to_determinants(prefixes)
    assert sorted(map(str, determinants.tolist())) == sorted(map(str, ansatz.sector.determinants().tolist()))
    torch.testing.assert_close(log_p, 2 * ansatz.log_psi(determinants).real)


def test_advance_leaves_the_old_state_valid(make_integrals):
    ansatz = build(make_integrals(4, 2, 2))
    state = ansatz.advance(ansatz.begin(), torch.tensor([0, 0]), torch.tensor([0, 1]))
    parents, tokens = torch.tensor([1, 0]), torch.tensor([2, 3])
    first = ansatz.advance(state, parents, tokens).log_conditionals
    ansatz.advance(state, torch.tensor([0, 0, 1]), torch.tensor([1, 2, 0]))
    again = torch.cat([ansatz.advance(state, parents[m : m + 1], tokens[m : m + 1]).log_conditionals for m in (0, 1)])
    torch.testing.assert_close(first, again)


def test_no_determinants_give_empty_results(make_integrals):
    ansatz = build(make_integrals(4, 2, 1), phase=HiddenPhase)
    nothing = ansatz.sector.determinants()[:0]
    assert ansatz.log_psi(nothing).shape == (0,)
    assert ansatz.phase(nothing).shape == (0,)
    none = torch.zeros(0, dtype=torch.int64)
    assert len(ansatz.advance(ansatz.begin(), none, none)) == 0


def test_start_is_nearly_uniform_over_allowed_tokens(make_integrals):
    ansatz = TransformerAnsatz(make_integrals(6, 3, 3), d_model=32)
    conditionals = ansatz.conditionals(ansatz.to_tokens(ansatz.sector.determinants())).exp()
    allowed = conditionals > 0
    uniform = allowed / allowed.sum(-1, keepdim=True)
    assert (conditionals - uniform).abs().max().item() < 0.1


def test_cache_bytes_bound_what_states_of_all_depths_hold(make_integrals):
    ansatz = build(make_integrals(8, 4, 4))
    states = [ansatz.begin()]
    for depth in range(1, 6):
        rows = torch.arange(500) % len(states[-1])
        states.append(ansatz.advance(states[-1], rows, torch.full((500,), depth % 2 * 3)))
    pool = states[-1].cache.pool.rows
    held = pool.numel() * pool.element_size() + sum(4 * state.cache.ancestors.numel() for state in states)
    assert 0.5 < held / (500 * sum(ansatz.cache_bytes(depth) for depth in range(1, 6))) <= 1


def test_point_group_leaves_the_sector_of_the_irrep(make_integrals):
    orbsym, target = (1, 2, 3, 1, 4), 4
    ansatz = build(
        make_integrals(5, 2, 2, orbsym=orbsym, wfn_sym=target),
        point_group=True,
        orbital_order=lambda i: ExplicitOrder(i, [2, 0, 4, 1, 3]),
    )
    determinants = ansatz.sector.determinants()
    log_psi = ansatz.log_psi(determinants)
    expected = []
    for occupation in unpack(determinants, 5).tolist():
        irrep = 0
        for orbital, (alpha, beta) in enumerate(occupation):
            for electron in (alpha, beta):
                irrep ^= electron * (orbsym[orbital] - 1)
        expected.append(irrep == target - 1)
    assert 0 < sum(expected) < len(expected)
    assert torch.isfinite(log_psi.real).tolist() == expected
    assert (2 * log_psi.real).exp().sum().item() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize(("spin_flip", "size"), [("even", 55), ("odd", 45)])
@pytest.mark.parametrize("order", [Reversed, lambda i: ExplicitOrder(i, [2, 0, 4, 1, 3])])
def test_spin_flip_decodes_one_determinant_of_each_pair_and_normalises_over_them(
    make_integrals, spin_flip, size, order
):
    ansatz = build(make_integrals(5, 2, 2), spin_flip=spin_flip, orbital_order=order)
    state, prefixes = ansatz.begin(), torch.zeros((1, 0), dtype=torch.int64)
    log_p = torch.zeros(1, dtype=torch.float64)
    for _ in range(ansatz.n_steps):
        conditionals = ansatz.log_conditionals(state)
        parents, tokens = torch.isfinite(conditionals).nonzero(as_tuple=True)
        log_p = log_p[parents] + conditionals[parents, tokens]
        prefixes = torch.cat([prefixes[parents], tokens[:, None]], dim=1)
        state = ansatz.advance(state, parents, tokens)
    determinants = ansatz.to_determinants(prefixes)
    assert len(determinants) == size
    assert sorted(map(str, determinants.tolist())) == sorted(map(str, ansatz.sector.determinants().tolist()))
    assert torch.equal(ansatz.to_tokens(determinants), prefixes)
    torch.testing.assert_close(log_p, 2 * ansatz.log_psi(determinants).real)
    everything = Sector(5, 2, 2).determinants()
    log_psi = ansatz.log_psi(everything)
    assert (2 * log_psi.real).exp().sum().item() == pytest.approx(1, abs=1e-12)
    assert torch.isfinite(log_psi.real).sum() == size


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"spin_flip": "even"}, "model.ansatz.spin_flip"),
        ({"d_model": 10, "n_heads": 4}, "model.ansatz.n_heads"),
        ({"d_model": 6, "n_heads": 2, "positional": Rotary}, "model.ansatz.d_model"),
        ({"n_layers": 0}, "model.ansatz.n_layers"),
        ({"mlp_factor": 0.0}, "model.ansatz.mlp_factor"),
        ({"point_group": True}, "model.ansatz.point_group"),
        ({"orbital_order": lambda i: ExplicitOrder(i, [0, 0, 1, 2])}, "model.ansatz.orbital_order.permutation"),
        ({"phase": lambda c: MLPPhase(c, hidden=(0,))}, "model.ansatz.phase.hidden"),
    ],
)
def test_options_that_do_not_fit_name_their_key(make_integrals, options, key):
    with pytest.raises(UserError, match=key.replace(".", r"\.")):
        TransformerAnsatz(make_integrals(4, 2, 1), **options)


def test_irreps_without_any_determinant_are_refused(make_integrals):
    with pytest.raises(UserError, match=r"model\.ansatz\.point_group"):
        TransformerAnsatz(make_integrals(4, 2, 2, orbsym=(1, 1, 1, 1), wfn_sym=3), point_group=True)
