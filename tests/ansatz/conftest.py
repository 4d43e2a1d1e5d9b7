"""Small systems with random integrals: nothing that an ansatz does needs a real molecule."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from nnqs_lightning.chem.integrals import MolecularIntegrals

MakeIntegrals = Callable[..., MolecularIntegrals]


@pytest.fixture(scope="session")
def make_integrals() -> MakeIntegrals:
    """Random symmetric integrals: make_integrals(n_orb, n_alpha, n_beta, seed=0, **fields)."""

    def make(n_orb: int, n_alpha: int, n_beta: int, seed: int = 0, **fields: object) -> MolecularIntegrals:
        rng = np.random.default_rng(seed)
        h1e = rng.normal(size=(n_orb, n_orb))
        # (pq|rs) = Σ_x B_x,pq B_x,rs with symmetric B is 8-fold symmetric and positive, as Coulomb integrals are.
        b = rng.normal(size=(n_orb**2, n_orb, n_orb))
        b = b + b.transpose(0, 2, 1)
        eri = np.einsum("xpq,xrs->pqrs", b, b) / (4 * n_orb**2)
        return MolecularIntegrals((h1e + h1e.T) / 2, eri, 0.5, n_alpha, n_beta, **fields)

    return make
