"""What schemes are told of the orbitals is that of the right orbitals, in decoding order."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from nnqs_lightning.ansatz import EnergyOrder, ExplicitOrder, RandomOrder, TransformerAnsatz
from nnqs_lightning.ansatz.orbital_context import orbital_features, orbital_pairs
from nnqs_lightning.ansatz.orbital_physics import levels
from nnqs_lightning.chem.cluster import cisd_vector
from nnqs_lightning.chem.entanglement import mutual_information
from nnqs_lightning.errors import UserError
from nnqs_lightning.fock import pack, unpack
from nnqs_lightning.nn.positional import IntegralBias, OrbitalFeatures, Rotary

ORBSYM = (1, 5, 2, 1, 3)
RELISTED = np.array([2, 4, 0, 3, 1])


@pytest.fixture
def integrals(make_integrals):
    return make_integrals(5, 3, 2, orbsym=ORBSYM)


def relist(integrals, permutation):
    """The same system with its orbitals listed in another order."""
    grid = np.ix_(permutation, permutation)
    eri = integrals.eri[np.ix_(*[permutation] * 4)]
    return replace(integrals, h1e=integrals.h1e[grid], eri=eri, orbsym=tuple(ORBSYM[p] for p in permutation))


def test_pairs_and_features_come_in_decoding_order(integrals):
    order = torch.tensor([3, 0, 4, 1, 2])
    pairs, features = orbital_pairs(integrals, order), orbital_features(integrals, order)
    for i, p in enumerate(order.tolist()):
        for j, q in enumerate(order.tolist()):
            assert pairs["exchange"][i, j].item() == integrals.eri[p, q, q, p]
            assert pairs["coulomb"][i, j].item() == integrals.eri[p, p, q, q]
            assert pairs["one_electron"][i, j].item() == integrals.h1e[p, q]
        assert features["index"][i].item() == p
        assert features["irrep"][i].tolist() == [float(g == ORBSYM[p] - 1) for g in range(8)]
    assert features["occupation"].sum(0).tolist() == [3, 2]
    assert "irrep" not in orbital_features(replace(integrals, orbsym=None), order)


def test_mutual_information_is_that_of_the_cisd_state(make_integrals):
    # Two electrons: CISD is exact. Deep levels make the lowest orbital a fair reference.
    system = make_integrals(4, 1, 1)
    system = replace(system, h1e=0.1 * system.h1e + np.diag([-4.0, -2.0, 0.0, 1.0]))
    order = torch.tensor([2, 0, 3, 1])
    information = orbital_pairs(system, order)["mutual_information"]
    expected = mutual_information(cisd_vector(system))
    assert expected.max() > 1e-3
    for i, p in enumerate(order.tolist()):
        for j, q in enumerate(order.tolist()):
            assert information[i, j].item() == pytest.approx(expected[p, q], abs=1e-12)


def test_level_zero_lies_in_the_middle_of_the_gap(make_integrals):
    energies = np.array([-20.0, -1.0, 0.4, 0.6])
    assert levels(make_integrals(4, 2, 2, mo_energy=energies)) == pytest.approx(energies + 0.3)
    assert levels(make_integrals(4, 2, 1, mo_energy=energies)) == pytest.approx(energies + 1.0)
    assert levels(make_integrals(4, 4, 4, mo_energy=energies)) == pytest.approx(energies - 0.6)


@pytest.mark.parametrize("start_place", ["shared", "own"])
def test_the_bias_joins_the_predicted_orbital_to_the_carried_one(integrals, start_place):
    scheme_of = partial(IntegralBias, transform="linear")
    order = partial(RandomOrder, seed=3)
    ansatz = TransformerAnsatz(integrals, positional=scheme_of, start_place=start_place, orbital_order=order)
    scheme = ansatz.decoder.positional
    torch.nn.init.normal_(scheme.weights)
    q = torch.zeros(1, 4, 5, 8)
    bias = scheme.bias(q, q, ansatz.decoder.places, ansatz.decoder.places)
    exchange = integrals.exchange - np.diag(np.diag(integrals.exchange))
    for i in range(5):
        assert torch.equal(bias[:, i, 0], scheme.weights[:, 0])
        for j in range(1, i + 1):
            share = exchange[ansatz.order[i], ansatz.order[j - 1]] / exchange.max()
            torch.testing.assert_close(bias[:, i, j], scheme.weights[:, 1] * share)


FEATURES = partial(OrbitalFeatures, features=["energy", "level", "occupation", "irrep"])


@pytest.mark.parametrize("start_place", ["shared", "own"])
def test_orbital_features_give_the_same_state_for_a_permuted_orbital_list(integrals, start_place):
    def build(system):
        torch.manual_seed(2)
        ansatz = TransformerAnsatz(system, positional=FEATURES, start_place=start_place, orbital_order=EnergyOrder)
        torch.nn.init.normal_(ansatz.decoder.head.weight)
        return ansatz

    here, there = build(integrals), build(relist(integrals, RELISTED))
    determinants = here.sector.determinants()
    relisted = pack(unpack(determinants, 5)[:, torch.from_numpy(RELISTED)])
    psi = here.log_psi(determinants).exp()
    assert psi.abs().std().item() > 1e-3
    torch.testing.assert_close(there.log_psi(relisted).exp(), psi, rtol=0, atol=1e-6)


def test_the_embedding_of_an_orbital_does_not_depend_on_when_it_is_decoded(integrals):
    orders = ([0, 1, 2, 3, 4], [4, 2, 3, 0, 1])
    signals = []
    for order in orders:
        torch.manual_seed(2)
        ansatz = TransformerAnsatz(
            integrals, positional=FEATURES, orbital_order=partial(ExplicitOrder, permutation=order)
        )
        x, tokens = torch.zeros(1, 5, 32), torch.zeros(1, 5, dtype=torch.int64)
        signals.append(ansatz.decoder.positional.embed(x, ansatz.decoder.places, tokens)[0])
    # Both decode orbital 3 after orbital 2 and orbital 1 after orbital 0.
    for orbital in (3, 1):
        first, second = (signal[order.index(orbital)] for signal, order in zip(signals, orders, strict=True))
        torch.testing.assert_close(first, second)
    assert not torch.allclose(signals[0][2], signals[1][1])


def test_an_ansatz_does_not_carry_the_integrals_along(integrals):
    ansatz = TransformerAnsatz(integrals, positional=IntegralBias)
    weights = sum(tensor.nbytes for tensor in ansatz.state_dict().values())
    assert len(pickle.dumps(ansatz)) < weights + 20_000
    assert not ansatz.decoder.positional.context.pairs


@pytest.mark.parametrize(
    "positional",
    [
        partial(OrbitalFeatures, features=["spread"]),
        partial(IntegralBias, sources=["dipole"]),
        partial(IntegralBias, sources=[]),
        partial(Rotary, fraction=0.4),
    ],
)
def test_options_that_the_system_cannot_serve_name_their_key(integrals, positional):
    with pytest.raises(UserError, match=r"model\.ansatz\.positional"):
        TransformerAnsatz(integrals, positional=positional)


def test_pairs_without_coupling_give_no_bias(make_integrals):
    system = replace(make_integrals(4, 2, 2), eri=np.zeros((4,) * 4))
    ansatz = TransformerAnsatz(system, positional=IntegralBias)
    assert math.isclose((2 * ansatz.log_psi(ansatz.sector.determinants()).real).exp().sum().item(), 1, abs_tol=1e-5)
