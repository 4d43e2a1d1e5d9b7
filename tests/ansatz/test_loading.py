"""Loading into another system keeps what the parameters meant, and tells what it could not keep."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from nnqs_lightning.ansatz import AsGiven, ExplicitOrder, Reversed, TransformerAnsatz, load_matching
from nnqs_lightning.errors import UserError
from nnqs_lightning.fock import pack, unpack
from nnqs_lightning.nn import positional


def build(integrals, seed, **options):
    torch.manual_seed(seed)
    ansatz = TransformerAnsatz(integrals, d_model=16, n_heads=2, **options).double()
    for parameter in ansatz.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return ansatz


@pytest.mark.parametrize("scheme", [positional.LearnedAbsolute, positional.IntegralBias, positional.Kerple])
def test_the_same_system_gets_the_same_state(make_integrals, scheme):
    integrals = make_integrals(4, 2, 2)
    source, target = (build(integrals, seed, positional=scheme) for seed in (1, 2))
    report = load_matching(target, source.state_dict())
    assert not report.resized
    assert not report.skipped
    determinants = source.sector.determinants()
    assert torch.equal(source.log_psi(determinants), target.log_psi(determinants))


@pytest.mark.parametrize("order", [AsGiven, Reversed, lambda i: ExplicitOrder(i, [*range(4, i.n_orb), 2, 0, 3, 1])])
def test_learned_rows_and_the_phase_follow_the_orbitals(make_integrals, order):
    small, large = make_integrals(4, 2, 1), make_integrals(6, 2, 1)
    source, target = (build(system, 1, orbital_order=order) for system in (small, large))
    fresh = target.decoder.positional.table.weight.detach().clone()
    report = load_matching(target, source.state_dict())
    assert report.resized == ["decoder.positional.table.weight", "phase_model.network.0.weight"]
    rows, trained_rows = (ansatz.decoder.positional.table.weight for ansatz in (target, source))
    for place, orbital in enumerate(target.order.tolist()):
        if orbital < 4:
            assert torch.equal(rows[place], trained_rows[source.order.tolist().index(orbital)])
        else:
            assert torch.equal(rows[place], fresh[place])
    determinants = source.sector.determinants()
    occupation = torch.nn.functional.pad(unpack(determinants, 4), (0, 0, 0, 2))
    # New orbitals do not enter the phase, whether empty or filled.
    for filled in (0, 1):
        occupation[:, 4:] = filled
        torch.testing.assert_close(target.phase(pack(occupation)), source.phase(determinants))


@pytest.mark.parametrize("name", ["RelativeBias", "FiedlerDistance"])
def test_longer_distances_start_from_the_longest_trained_one(make_integrals, name):
    scheme = getattr(positional, name)
    source, target = (build(make_integrals(n, 2, 1), 1, positional=scheme) for n in (4, 7))
    report = load_matching(target, source.state_dict())
    tables = [a.decoder.positional for a in (source, target)]
    if name == "FiedlerDistance":
        tables = [scheme.form for scheme in tables]
    trained, extended = (scheme.table.weight for scheme in tables)
    assert torch.equal(extended[:4], trained)
    assert torch.equal(extended[4:], trained[-1:].expand(3, -1))
    assert any("table" in parameter for parameter in report.resized)


def test_the_same_orbitals_with_fewer_orbitals_also_load(make_integrals):
    source, target = (build(make_integrals(n, 2, 1), 1) for n in (6, 4))
    load_matching(target, source.state_dict())
    # Reversed order: the small system starts where the large one decodes orbital 3.
    assert torch.equal(target.decoder.positional.table.weight, source.decoder.positional.table.weight[2:])


def test_what_does_not_fit_is_named_with_its_reason(make_integrals):
    integrals = make_integrals(4, 2, 1)
    source = build(integrals, 1, positional=positional.T5Bias)
    target = build(integrals, 2, positional=partial(positional.T5Bias, n_buckets=8), n_layers=3)
    before = target.decoder.positional.table.weight.detach().clone()
    report = load_matching(target, source.state_dict())
    assert report.skipped["decoder.positional.table.weight"] == "shape [16, 2] in the checkpoint, [8, 2] here"
    assert report.skipped["decoder.blocks.2.attention.qkv.weight"] == "not in the checkpoint"
    assert torch.equal(target.decoder.positional.table.weight, before)
    assert "decoder.blocks.0.attention.qkv.weight" in report.loaded
    reverse = load_matching(source, target.state_dict())
    assert reverse.skipped["decoder.blocks.2.attention.qkv.weight"] == "not part of this ansatz"
    assert "decoder.positional.table.weight" in str(reverse)


def test_buffers_stay_those_of_the_new_system(make_integrals):
    source, target = (build(make_integrals(4, 2, 1, seed), 1, positional=positional.IntegralBias) for seed in (0, 1))
    strengths = target.decoder.positional.strengths.clone()
    load_matching(target, source.state_dict())
    assert torch.equal(target.decoder.positional.strengths, strengths)
    assert not torch.equal(source.decoder.positional.strengths, strengths)


def test_a_foreign_state_is_refused(make_integrals):
    with pytest.raises(UserError, match=r"model\.init_from"):
        load_matching(build(make_integrals(4, 2, 1), 1), {"weight": torch.zeros(1)})
