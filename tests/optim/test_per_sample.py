from functools import partial
from inspect import isabstract

import numpy as np
import pytest
import torch
from torch import nn
from toy_ansatz import ToyAnsatz, dense_scores

from nnqs_lightning.ansatz import TransformerAnsatz
from nnqs_lightning.ansatz.phase import HiddenPhase, MLPPhase, NoPhase
from nnqs_lightning.chem.integrals import MolecularIntegrals
from nnqs_lightning.errors import UserError
from nnqs_lightning.fock import Sector, unpack
from nnqs_lightning.nn.positional import PositionalScheme, RelativeBias
from nnqs_lightning.optim.per_sample import PerSampleScores
from nnqs_lightning.optim.tangent import ParameterSpace, SampleSpace

SECTOR = Sector(5, 2, 2)
PHASES = {"mlp": partial(MLPPhase, hidden=(6,)), "hidden": HiddenPhase, "none": NoPhase}


def integrals(n_orb=5):
    generator = np.random.default_rng(0)
    one = generator.normal(size=(n_orb, n_orb))
    pair = generator.normal(size=(n_orb * (n_orb + 1) // 2,) * 2)
    index = np.zeros((n_orb, n_orb), dtype=int)
    rows, columns = np.tril_indices(n_orb)
    index[rows, columns] = index[columns, rows] = np.arange(len(rows))
    eri = (pair + pair.T)[index[:, :, None, None], index[None, None]]
    return MolecularIntegrals(one + one.T, eri, 0.0, 2, 2, mo_energy=np.arange(n_orb, dtype=float))


def transformer(**options):
    torch.manual_seed(0)
    ansatz = TransformerAnsatz(
        integrals(), **{"d_model": 8, "n_heads": 2, "n_layers": 1, "mlp_factor": 1.0, **options}
    ).double()
    with torch.no_grad():
        # Away from zero initialisation, where wrong scores could hide.
        for parameter in ansatz.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return ansatz


def schemes():
    def subclasses(cls):
        return {sub for child in cls.__subclasses__() for sub in (child, *subclasses(child))}

    ours = (c for c in subclasses(PositionalScheme) if c.__module__.startswith("nnqs_lightning"))
    return sorted((c for c in ours if not isabstract(c) and c.__name__[0] != "_"), key=lambda c: c.__name__)


def assert_products_are_exact(ansatz, determinants, max_bytes=2**30):
    """Gram matrix, normal equations and O v against dense scores from ``vmap(grad)``."""
    generator = torch.Generator().manual_seed(1)
    n = len(determinants)
    weights = torch.rand(n, dtype=torch.float64, generator=generator)
    weights /= weights.sum()
    scale = torch.rand(n, dtype=torch.float64, generator=generator)
    tangent = {
        name: torch.randn(p.shape, dtype=torch.float64, generator=generator) for name, p in ansatz.named_parameters()
    }
    scores = PerSampleScores(ansatz, determinants[:6], max_bytes)
    dense = dense_scores(ansatz, determinants)[list(scores.parts)]
    rows = (dense - torch.einsum("i,aip->ap", weights, dense)[:, None]) * scale[:, None]
    moved = rows @ torch.cat([t.flatten() for t in tangent.values()])
    target = torch.randn(1, *rows.shape[:2], dtype=torch.float64, generator=generator)
    flat = rows.flatten(0, 1)
    identity = torch.eye(len(flat), dtype=torch.float64)
    expected = torch.linalg.solve(flat @ flat.t() + identity, target.flatten()).view(target.shape)
    for kind in (SampleSpace, ParameterSpace):
        space = kind(scores, determinants, weights, scale, tangent)
        torch.testing.assert_close(space.moved, moved, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(space.solve(target, 1.0)[0], expected, rtol=1e-8, atol=1e-9)
    gram = SampleSpace(scores, determinants, weights, scale).gram
    torch.testing.assert_close(gram.flatten(2).flatten(0, 1), flat @ flat.t(), rtol=1e-9, atol=1e-9)
    return scores


@pytest.mark.parametrize("scheme", schemes())
def test_scores_of_every_positional_scheme_equal_autograd(scheme):
    try:
        ansatz = transformer(positional=scheme, phase=PHASES["mlp"])
    except (TypeError, UserError) as error:
        pytest.skip(f"{scheme.__name__} needs more than its defaults: {error}")
    assert_products_are_exact(ansatz, SECTOR.determinants()[::7])


@pytest.mark.parametrize("phase", PHASES.values(), ids=PHASES)
def test_scores_of_every_phase_equal_autograd(phase):
    assert_products_are_exact(transformer(phase=phase), SECTOR.determinants()[::7])


@pytest.mark.parametrize("shared", [False, True])
def test_small_memory_gives_the_same(shared):
    ansatz = ToyAnsatz(SECTOR, width=20, shared=shared)
    assert_products_are_exact(ansatz, SECTOR.determinants()[::3], max_bytes=2**14)


def test_only_tables_that_all_samples_share_go_without_hooks():
    scores = PerSampleScores(transformer(positional=RelativeBias), SECTOR.determinants()[:6], 2**30)
    rest = [layer for layer in scores.layers if layer.module is None]
    assert [layer.parameters for layer in rest] == [("decoder.positional.table.weight",)]
    assert scores.separable


def test_a_phase_on_the_hidden_states_shares_parameters_with_the_amplitude():
    assert not PerSampleScores(transformer(phase=HiddenPhase), SECTOR.determinants()[:6], 2**30).separable


class Odd(ToyAnsatz):
    """Bits, then one unusual piece, then two outputs; subclasses say which piece."""

    def __init__(self, seed=0):
        super().__init__(SECTOR, shared=True, seed=seed)
        self.piece = self.build().double()

    def build(self):
        raise NotImplementedError

    def apply_piece(self, x):
        return self.piece(x)

    def log_psi(self, determinants):
        bits = unpack(determinants, 5).flatten(1).double() * 2 - 1
        output = self.amplitude(self.apply_piece(bits))
        return torch.complex(output[:, 0], output[:, 1])


class OwnParameter(Odd):
    def build(self):
        class Scale(nn.Module):
            def __init__(self):
                super().__init__()
                self.factor = nn.Parameter(torch.linspace(0.5, 1.5, 10))

            def forward(self, x):
                return x * self.factor.cos()

        return Scale()


class OverriddenLinear(Odd):
    def build(self):
        class Doubling(nn.Linear):
            def forward(self, x):
                return 2 * super().forward(x) ** 2

        return Doubling(10, 10)


class WeightUsedTwice(Odd):
    def build(self):
        return nn.Linear(10, 10)

    def apply_piece(self, x):
        return self.piece(x) @ self.piece.weight


class CalledTwice(Odd):
    def build(self):
        return nn.Linear(10, 10)

    def apply_piece(self, x):
        return self.piece(self.piece(x).tanh())


class ChangedInPlace(Odd):
    def build(self):
        return nn.Linear(10, 10)

    def apply_piece(self, x):
        y = self.piece(x)
        y *= y.detach() + 3
        return y


class TableOfPlaces(Odd):
    """Rows of the table are places; there are as many as probe rows, so shapes do not tell."""

    def build(self):
        return nn.Embedding(6, 10)

    def apply_piece(self, x):
        return x + self.piece(torch.arange(6)).cumsum(0)[-1]


class BranchesOnValues(Odd):
    def build(self):
        return OwnParameter.build(self)

    def apply_piece(self, x):
        if x.isnan().any():
            raise ValueError
        return self.piece(x)


class TiedModules(Odd):
    def build(self):
        first, second = nn.Linear(10, 10), nn.Linear(10, 10)
        second.weight = first.weight
        return nn.Sequential(first, nn.Tanh(), second)


class NoBias(Odd):
    def build(self):
        return nn.Sequential(nn.Linear(10, 6, bias=False), nn.LayerNorm(6, bias=False), nn.Linear(6, 10))


@pytest.mark.parametrize(
    "kind",
    [OwnParameter, OverriddenLinear, WeightUsedTwice, CalledTwice, ChangedInPlace, TableOfPlaces, TiedModules, NoBias],
)
def test_unusual_modules_are_right_too(kind):
    assert_products_are_exact(kind(), SECTOR.determinants()[::5])


def test_a_wave_function_that_vmap_refuses_goes_sample_by_sample():
    determinants = SECTOR.determinants()[::10]
    scores = PerSampleScores(BranchesOnValues(), determinants, 2**30)
    uniform = torch.full((len(determinants),), 1 / len(determinants), dtype=torch.float64)
    found = SampleSpace(scores, determinants, uniform, uniform).gram
    plain = OwnParameter()
    expected = SampleSpace(PerSampleScores(plain, determinants, 2**30), determinants, uniform, uniform).gram
    torch.testing.assert_close(found, expected)


def test_frozen_parameters_have_no_scores():
    ansatz = ToyAnsatz(SECTOR)
    ansatz.phase_net.requires_grad_(False)
    scores = PerSampleScores(ansatz, SECTOR.determinants()[:6], 2**30)
    assert scores.parts == (0,)
    assert all(name.startswith("amplitude") for layer in scores.layers for name in layer.parameters)
