"""Damped solves of matrices that rounding has touched."""

import torch

from nnqs_lightning.optim.tangent import solve_damped


def block_with(*eigenvalues):
    generator = torch.Generator().manual_seed(4)
    random = torch.randn(len(eigenvalues), len(eigenvalues), dtype=torch.float64, generator=generator)
    vectors = torch.linalg.qr(random).Q
    return vectors @ torch.diag(torch.tensor(eigenvalues, dtype=torch.float64)) @ vectors.t(), vectors


def test_an_eigenvalue_just_above_minus_the_damping_is_damped_more():
    block, _ = block_with(1.0, 0.5, -9.999e-4)
    right = torch.ones(3, 1, dtype=torch.float64)
    assert not torch.linalg.cholesky_ex(block + 1e-3 * torch.eye(3))[1]
    (x,), shift = solve_damped([block], [right], 1e-3)
    assert shift == 1e-2
    torch.testing.assert_close((block + shift * torch.eye(3)) @ x, right)


def test_what_the_block_cannot_reach_needs_no_more_damping():
    block, vectors = block_with(1.0, 0.5, 0.0)
    (x,), shift = solve_damped([block], [vectors[:, 2:]], 1e-3)
    assert shift == 1e-3
    torch.testing.assert_close(x, 1e3 * vectors[:, 2:])


def test_an_indefinite_block_is_solved_by_eigenvectors():
    block, vectors = block_with(1.0, 0.5, -9.0)
    (x,), shift = solve_damped([block], [vectors[:, 1:2]], 1e-3)
    torch.testing.assert_close(x, vectors[:, 1:2] / (0.5 + shift))
