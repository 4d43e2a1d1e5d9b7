"""Feasibility against enumeration: a prefix is allowed exactly if some determinant of the target begins with it."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from nnqs_lightning.ansatz.constraint import Constraint, masked_log_softmax
from nnqs_lightning.fock import Sector

IRREPS = (0, 3, 1, 3, 5)


def targets(sector: Sector, irreps: tuple[int, ...] | None, target: int) -> list[tuple[int, ...]]:
    """Token sequences of the target, found by trying all."""
    found = []
    for tokens in itertools.product(range(4), repeat=sector.n_orb):
        alpha, beta = sum(t & 1 for t in tokens), sum(t >> 1 for t in tokens)
        irrep = 0
        for token, orbital_irrep in zip(tokens, irreps or (0,) * sector.n_orb, strict=True):
            irrep ^= orbital_irrep if token in (1, 2) else 0
        first_open = next((t for t in tokens if t in (1, 2)), None)
        if sector.spin_parity and first_open not in ((1, None) if sector.spin_parity == 1 else (1,)):
            continue
        if (alpha, beta, irrep) == (sector.n_alpha, sector.n_beta, target):
            found.append(tokens)
    return found


@pytest.mark.parametrize(
    ("sector", "irreps", "target"),
    [
        (Sector(5, 2, 2), None, 0),
        (Sector(5, 5, 1), None, 0),
        (Sector(5, 0, 0), None, 0),
        (Sector(5, 2, 2), IRREPS, 0),
        (Sector(5, 3, 2), IRREPS, 5),
        (Sector(5, 2, 1), IRREPS, 6),
        (Sector(5, 2, 2, 1), None, 0),
        (Sector(5, 3, 3, -1), None, 0),
        (Sector(5, 2, 2, 1), IRREPS, 0),
        (Sector(5, 3, 3, -1), IRREPS, 2),
    ],
)
def test_allowed_tokens_are_those_that_some_target_continues_with(sector, irreps, target):
    constraint = Constraint(sector, None if irreps is None else torch.tensor(irreps), target)
    complete = targets(sector, irreps, target)
    assert complete
    everything = torch.tensor(list(itertools.product(range(4), repeat=5)))
    along = constraint.allowed_along(everything)
    nodes = torch.zeros(len(everything), dtype=torch.int64)
    for orbital in range(5):
        continuations = {prefix[: orbital + 1] for prefix in complete}
        expected = [[(*row[:orbital], token) in continuations for token in range(4)] for row in everything.tolist()]
        assert along[:, orbital].tolist() == expected
        assert constraint.allowed(nodes, orbital).tolist() == expected
        nodes = constraint.advance(nodes, orbital, everything[:, orbital])


def test_masked_log_softmax_normalises_over_allowed_tokens_with_finite_gradients():
    logits = torch.tensor([[0.3, -1.0, 2.0, 0.1], [1e4, -1e4, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]], requires_grad=True)
    allowed = torch.tensor([[True, False, True, True], [False, True, False, False], [False] * 4])
    log_p = masked_log_softmax(logits, allowed)
    total = math.exp(0.3) + math.exp(2.0) + math.exp(0.1)
    expected = [v - math.log(total) for v in (0.3, 2.0, 0.1)]
    assert log_p.dtype == torch.float64
    assert log_p[0, [0, 2, 3]].tolist() == pytest.approx(expected, abs=1e-7)
    assert log_p[1].tolist() == [-math.inf, 0.0, -math.inf, -math.inf]
    assert log_p[2].tolist() == [-math.inf] * 4
    log_p.sum(-1)[:2].sum().backward()
    log_p = masked_log_softmax(logits, allowed)
    logits.grad = None
    log_p[:, 2].sum().backward()
    assert torch.isfinite(logits.grad).all()
    assert logits.grad[0, 2].item() == pytest.approx(1 - math.exp(2.0) / total, abs=1e-6)
