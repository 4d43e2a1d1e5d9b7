"""The contract of positional schemes: every law for every scheme under both conventions of the start token."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections import ChainMap
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import positional_formulas as by_hand
import pytest
import torch
from positional_formulas import Oracle

import nnqs_lightning.nn.positional as package
from nnqs_lightning.ansatz import HiddenPhase, TransformerAnsatz, load_matching
from nnqs_lightning.errors import UserError
from nnqs_lightning.nn import positional
from nnqs_lightning.nn.positional import PositionalFactory, PositionalScheme, PositionContext

L, D_MODEL, N_HEADS, D_HEAD = 6, 32, 4, 8
"""Sizes of every decoder and context below."""


@dataclass
class Case:
    """A scheme, its formula by hand, and what it promises."""

    factory: PositionalFactory
    oracle: Oracle = field(default_factory=Oracle)
    sees_order: bool = True
    extends: bool = True
    """Whether it gives places beyond the ones it was built for."""


CASES = {
    "none": Case(positional.NoPositional, sees_order=False),
    "learned": Case(positional.LearnedAbsolute, Oracle(embed=by_hand.learned_row), extends=False),
    "sinusoidal": Case(positional.Sinusoidal, Oracle(embed=by_hand.sinusoid)),
    "rotary": Case(positional.Rotary, Oracle(rotate=by_hand.rotary())),
    "rotary_half": Case(
        partial(positional.Rotary, base=100.0, fraction=0.5), Oracle(rotate=by_hand.rotary(100.0, n_rotated=4))
    ),
    "rotary_linear": Case(
        partial(positional.Rotary, scaling="linear", factor=2.0), Oracle(rotate=by_hand.rotary(stretch=2.0))
    ),
    "rotary_ntk": Case(
        partial(positional.Rotary, scaling="ntk", factor=2.0), Oracle(rotate=by_hand.rotary(10000.0 * 2 ** (8 / 6)))
    ),
    "alibi": Case(positional.Alibi, Oracle(bias=by_hand.alibi)),
    "t5": Case(partial(positional.T5Bias, n_buckets=4, max_distance=6), Oracle(bias=by_hand.t5(4, 6))),
    "relative": Case(positional.RelativeBias, Oracle(bias=by_hand.relative(L - 1))),
    "relative_clipped": Case(partial(positional.RelativeBias, max_distance=2), Oracle(bias=by_hand.relative(2))),
}
CASES |= {
    "spin_aware": Case(positional.SpinAware, Oracle(embed=by_hand.spin_rows), extends=False),
    "rotary_learned": Case(positional.RotaryLearned, Oracle(rotate=by_hand.rotary_learned)),
    "xpos": Case(partial(positional.XPos, decay_length=8.0), Oracle(rotate=by_hand.xpos(0.4, 8.0))),
    "kerple": Case(positional.Kerple, Oracle(bias=by_hand.kerple_log)),
    "kerple_power": Case(partial(positional.Kerple, kernel="power"), Oracle(bias=by_hand.kerple_power)),
    "fire": Case(partial(positional.Fire, threshold=3.0), Oracle(bias=by_hand.fire)),
    "cope": Case(partial(positional.Cope, max_position=2), Oracle(bias=by_hand.cope)),
}

# Schemes that know the orbitals of one system, and so no orbital beyond.
CASES |= {
    "integral": Case(
        positional.IntegralBias, Oracle(bias=by_hand.pair_bias(["exchange"], by_hand.log_share)), extends=False
    ),
    "integral_all": Case(
        partial(positional.IntegralBias, sources=["exchange", "coulomb", "one_electron"], transform="sqrt"),
        Oracle(bias=by_hand.pair_bias(["exchange", "coulomb", "one_electron"], lambda share: share**0.5)),
        extends=False,
    ),
    "mutual_information": Case(
        lambda context: positional.MutualInformationBias(with_information(context), transform="linear"),
        Oracle(bias=by_hand.pair_bias(["mutual_information"], lambda share: share)),
        extends=False,
    ),
    "fiedler": Case(positional.FiedlerDistance, Oracle(bias=by_hand.fiedler_relative("exchange")), extends=False),
    "strong_pairs": Case(
        partial(positional.StrongPairDistance, form=positional.Alibi, source="coulomb", threshold=0.3),
        Oracle(bias=by_hand.strong_pair_alibi("coulomb", 0.3)),
        extends=False,
    ),
    "features": Case(positional.OrbitalFeatures, Oracle(embed=by_hand.orbital_features), extends=False),
    "lattice": Case(
        partial(positional.Lattice2D, n_columns=3),
        Oracle(embed=by_hand.lattice_signal, bias=by_hand.lattice_displacement),
        extends=False,
    ),
    "lattice_periodic": Case(
        partial(positional.Lattice2D, n_columns=3, periodic=True),
        Oracle(embed=by_hand.lattice_signal, bias=by_hand.lattice_displacement),
        extends=False,
    ),
}

CASES["combined"] = Case(
    partial(
        positional.Combined,
        schemes=[positional.LearnedAbsolute, positional.Rotary, positional.Alibi, positional.RelativeBias],
    ),
    Oracle(
        embed=lambda scheme, *place: by_hand.learned_row(scheme.schemes[0], *place),
        rotate=lambda scheme, *vector: by_hand.rotary()(scheme.schemes[1], *vector),
        bias=lambda scheme, *pair: (
            by_hand.alibi(scheme.schemes[2], *pair) + by_hand.relative(L - 1)(scheme.schemes[3], *pair)
        ),
    ),
    extends=False,
)
CASES["combined_contextual"] = Case(
    partial(positional.Combined, schemes=[partial(positional.Cope, max_position=2), positional.Sinusoidal]),
    Oracle(
        embed=lambda scheme, *place: by_hand.sinusoid(scheme.schemes[1], *place),
        bias=lambda scheme, *pair: by_hand.cope(scheme.schemes[0], *pair),
    ),
)


def with_information(context: PositionContext) -> PositionContext:
    """The context with made-up mutual information, whose true values need a correlated calculation."""
    information = by_hand.orbital_tables(context.n_positions)[0]["mutual_information"]
    return replace(context, pairs=ChainMap({"mutual_information": information}, context.pairs))


each_scheme = pytest.mark.parametrize("name", CASES)
each_start = pytest.mark.parametrize("start_place", ["shared", "own"])


def build_scheme(name: str, start_place: str, n_positions: int = L) -> PositionalScheme:
    """A scheme in float64 with shaken parameters, since some start at zero."""
    start_position = 0 if start_place == "shared" else -1
    return shake(CASES[name].factory(make_context(start_position, n_positions)).double())


def make_context(start_position: int, n_positions: int = L) -> PositionContext:
    pairs, features = by_hand.orbital_tables(n_positions)
    return PositionContext(n_positions, D_MODEL, N_HEADS, D_HEAD, start_position, pairs, features)


def shake(module: torch.nn.Module) -> torch.nn.Module:
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.7 * torch.randn(parameter.shape, dtype=parameter.dtype))
    return module


def build_ansatz(name: str, start_place: str, integrals, **options) -> TransformerAnsatz:
    """A wave function in float64, far from the flat start."""
    ansatz = TransformerAnsatz(
        integrals, D_MODEL, N_HEADS, positional=CASES[name].factory, start_place=start_place, **options
    ).double()
    torch.manual_seed(7)
    shake(ansatz.decoder.positional)
    torch.nn.init.normal_(ansatz.decoder.head.weight, std=0.4)
    return ansatz


@pytest.fixture(scope="module")
def integrals(make_integrals):
    return make_integrals(L, 3, 2)


def hooks(scheme: PositionalScheme, places: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What the three hooks give for fixed random inputs at ``places``; the leading T of longer inputs are the same."""
    generator = torch.Generator().manual_seed(11)
    x = torch.randn(2, 24, D_MODEL, generator=generator, dtype=torch.float64)[:, : len(places)]
    q, k = torch.randn(2, 2, N_HEADS, 24, D_HEAD, generator=generator, dtype=torch.float64)[:, :, :, : len(places)]
    tokens = torch.randint(0, 4, (2, 24), generator=generator)[:, : len(places)]
    rotated_q, rotated_k = scheme.rotate(q, k, places, places)
    bias = scheme.bias(rotated_q, rotated_k, places, places)
    shape = (2, N_HEADS, len(places), len(places))
    bias = torch.zeros(shape, dtype=torch.float64) if bias is None else bias.expand(shape)
    return tokens, x, q, k, scheme.embed(x, places, tokens), rotated_q, rotated_k, bias.tril()


@each_start
@each_scheme
def test_probabilities_sum_to_one(name, start_place, integrals):
    ansatz = build_ansatz(name, start_place, integrals)
    log_psi = ansatz.log_psi(ansatz.sector.determinants())
    assert (2 * log_psi.real).exp().sum().item() == pytest.approx(1, abs=1e-12)


@each_start
@each_scheme
def test_conditionals_ignore_the_own_and_later_orbitals(name, start_place, integrals):
    ansatz = build_ansatz(name, start_place, integrals)
    tokens = ansatz.to_tokens(ansatz.sector.determinants()[::7])
    before = ansatz.conditionals(tokens)
    for j in range(L):
        changed = tokens.clone()
        changed[:, j] = (changed[:, j] + 1) % 4
        after = ansatz.conditionals(changed)
        assert torch.equal(after[:, : j + 1], before[:, : j + 1])
        assert j == L - 1 or not torch.equal(after[:, j + 1], before[:, j + 1])


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@each_start
@each_scheme
def test_cached_decoding_equals_the_full_pass(name, start_place, dtype, tolerance, integrals):
    ansatz = build_ansatz(name, start_place, integrals).to(dtype)
    tokens = ansatz.to_tokens(ansatz.sector.determinants()[::7])
    full = ansatz.conditionals(tokens)
    # Rows are decoded in another order at each step, so that a wrong gather shows.
    state = ansatz.begin()
    for i in range(L):
        rows = torch.arange(len(tokens)).roll(i)
        conditionals = ansatz.log_conditionals(state).expand(len(tokens), 4)
        torch.testing.assert_close(conditionals, full[rows, i], rtol=0, atol=tolerance)
        parents = torch.zeros_like(rows) if i == 0 else torch.arange(len(tokens)).roll(1)
        state = ansatz.advance(state, parents, tokens[rows.roll(1), i])


@each_scheme
def test_states_along_a_sequence_decode_on_like_those_of_single_steps(name, integrals):
    ansatz = build_ansatz(name, "shared", integrals).double()
    tokens = ansatz.to_tokens(ansatz.sector.determinants()[5:6])[0]
    row, alone = torch.zeros(1, dtype=torch.int64), ansatz.begin()
    for i, state in enumerate(ansatz.along(ansatz.begin(), tokens)):
        assert len(state) == 1
        torch.testing.assert_close(ansatz.log_conditionals(state), ansatz.log_conditionals(alone))
        both = torch.nonzero(ansatz.log_conditionals(state)[0].isfinite())[:, 0]
        parents = torch.zeros_like(both)
        children = [ansatz.advance(of, parents, both) for of in (state, alone)]
        torch.testing.assert_close(*(ansatz.log_conditionals(of) for of in children))
        alone = ansatz.advance(alone, row, tokens[i : i + 1])


@each_scheme
def test_every_parameter_of_a_scheme_learns(name, integrals):
    ansatz = build_ansatz(name, "shared", integrals)
    scheme = ansatz.decoder.positional
    (ansatz.log_psi(ansatz.sector.determinants()).real * torch.linspace(-1, 1, ansatz.sector.size)).sum().backward()
    for parameter_name, parameter in scheme.named_parameters():
        assert torch.isfinite(parameter.grad).all(), parameter_name
        assert parameter.grad.abs().max().item() > 1e-9, parameter_name


@each_start
@each_scheme
def test_swapping_unequal_tokens_changes_log_psi(name, start_place, integrals):
    ansatz = build_ansatz(name, start_place, integrals, phase=HiddenPhase)
    tokens = torch.tensor([[1, 3, 0, 2, 1, 0]])
    for i in range(L - 1):
        swapped = tokens.clone()
        swapped[:, [i, i + 1]] = swapped[:, [i + 1, i]]
        pair = ansatz.log_psi(ansatz.to_determinants(torch.cat([tokens, swapped])))
        assert (pair[0] - pair[1]).abs().item() > 1e-6


@each_start
@each_scheme
def test_one_layer_tells_permuted_prefixes_apart_where_the_scheme_sees_order(name, start_place, integrals):
    ansatz = build_ansatz(name, start_place, integrals, n_layers=1)
    tokens = torch.tensor([[1, 3, 0, 2, 0, 1], [3, 0, 2, 1, 0, 1]])
    logits = ansatz.decoder.head(ansatz.decoder(tokens))[:, -1]
    difference = (logits[0] - logits[1]).abs().max().item()
    assert difference > 1e-6 if CASES[name].sees_order else difference < 1e-12


@each_scheme
def test_the_place_of_the_start_token_matters_only_to_schemes_that_read_places_themselves(name, integrals):
    shared, own = (build_ansatz(name, start_place, integrals) for start_place in ("shared", "own"))
    own.load_state_dict(shared.state_dict())
    determinants = shared.sector.determinants()
    difference = (shared.log_psi(determinants) - own.log_psi(determinants)).abs().max().item()
    assert difference > 1e-3 if name in ("sinusoidal", "combined_contextual") else difference < 1e-10


@each_start
@each_scheme
def test_hooks_agree_with_the_formula_by_hand(name, start_place):
    scheme, oracle = build_scheme(name, start_place), CASES[name].oracle
    places = torch.arange(L) + scheme.context.start_position
    results = (tensor.detach().numpy() for tensor in hooks(scheme, places))
    tokens, x, q, k, embedded, rotated_q, rotated_k, bias = results
    for i, n in enumerate(places.tolist()):
        for sample in range(2):
            signal = oracle.embed(scheme, n, int(tokens[sample, i])) if oracle.embed else 0.0
            np.testing.assert_allclose(embedded[sample, i], x[sample, i] + signal, atol=1e-12)
        for sample, head in np.ndindex(2, N_HEADS):
            for plain, turned, is_key in [(q, rotated_q, False), (k, rotated_k, True)]:
                vector = plain[sample, head, i]
                expected = oracle.rotate(scheme, vector, n, is_key, head) if oracle.rotate else vector
                np.testing.assert_allclose(turned[sample, head, i], expected, atol=1e-12)
            for j in range(i + 1):
                arguments = (head, i, j, places.tolist(), rotated_q[sample, head], rotated_k[sample, head])
                expected = oracle.bias(scheme, *arguments) if oracle.bias else 0.0
                assert bias[sample, head, i, j] == pytest.approx(expected, abs=1e-12)


@each_start
@each_scheme
def test_longer_than_built_for_works_or_says_why_not(name, start_place):
    scheme = build_scheme(name, start_place)
    start = scheme.context.start_position
    if CASES[name].extends:
        short = hooks(scheme, torch.arange(L) + start)[-4:]
        x, q, k, bias = hooks(scheme, torch.arange(2 * L) + start)[-4:]
        for few, many in zip(short, (x[:, :L], q[:, :, :L], k[:, :, :L], bias[:, :, :L, :L]), strict=True):
            torch.testing.assert_close(few, many)
        assert all(torch.isfinite(tensor).all() for tensor in (x, q, k, bias))
    else:
        with pytest.raises(UserError, match=r"model\.ansatz"):
            hooks(scheme, torch.arange(L + 1) + start)


@each_scheme
def test_state_travels_with_the_checkpoint_and_to(name):
    scheme = build_scheme(name, "own")
    kept = {id(tensor) for tensor in scheme.state_dict(keep_vars=True).values()}
    assert all(id(tensor) in kept for tensor in [*scheme.buffers(), *scheme.parameters()])
    other = CASES[name].factory(make_context(-1)).double()
    other.load_state_dict(scheme.state_dict())
    places = torch.arange(L) - 1
    for mine, theirs in zip(hooks(scheme, places), hooks(other, places), strict=True):
        assert torch.equal(mine, theirs)
    moved = scheme.to("meta")
    assert all(tensor.device.type == "meta" for tensor in [*moved.buffers(), *moved.parameters()])


@each_scheme
def test_every_scheme_says_how_it_extends_and_does(name, make_integrals):
    small, large = (build_ansatz(name, "shared", make_integrals(n_orb, 3, 2)) for n_orb in (L, 2 * L))
    report = load_matching(large, small.state_dict())
    own = {f"decoder.positional.{name}" for name, _ in large.decoder.positional.named_parameters()}
    assert own <= {*report.loaded, *report.resized} | {"decoder.positional.displacement.weight"}
    assert len(large.decoder.positional.extension) > 10


@each_scheme
def test_only_contextual_schemes_read_keys(name):
    scheme, places = build_scheme(name, "shared"), torch.arange(L)
    q, k = torch.randn(2, 2, N_HEADS, L, D_HEAD, dtype=torch.float64)
    biases = [scheme.bias(q, keys, places, places) for keys in (k, 2 * k)]
    if biases[0] is not None:
        assert torch.equal(*biases) is not scheme.contextual


@each_scheme
def test_hooks_keep_the_dtype(name):
    scheme = build_scheme(name, "shared").float()
    places = torch.arange(L)
    q = torch.randn(2, N_HEADS, L, D_HEAD)
    x = scheme.embed(torch.randn(2, L, D_MODEL), places, torch.zeros(2, L, dtype=torch.int64))
    rotated = scheme.rotate(q, q, places, places)
    bias = scheme.bias(q, q, places, places)
    assert {x.dtype, rotated[0].dtype, rotated[1].dtype} == {torch.float32}
    assert bias is None or bias.dtype == torch.float32


def test_every_scheme_of_the_package_is_in_this_suite():
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)

    def descendants(cls):
        return {cls}.union(*(descendants(child) for child in cls.__subclasses__()))

    ours = {cls for cls in descendants(PositionalScheme) if cls.__module__.startswith("nnqs_lightning.")}
    concrete = {cls for cls in ours if not cls.__name__.startswith("_") and not inspect.isabstract(cls)}
    concrete -= {PositionalScheme}
    listed = {type(build_scheme(name, "shared")) for name in CASES}
    assert concrete == listed
    assert {cls.__name__ for cls in concrete} <= set(positional.__all__)
