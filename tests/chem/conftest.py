"""Made-up Hamiltonians."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from nnqs_lightning.chem import MolecularIntegrals

MakeIntegrals = Callable[..., MolecularIntegrals]


@pytest.fixture(scope="session")
def make_integrals() -> MakeIntegrals:
    """Random integrals without zeros and with all symmetries exact, of given size, seed and electron numbers."""

    def make(n_orb: int = 3, seed: int = 0, n_alpha: int = 2, n_beta: int = 2, **fields: object) -> MolecularIntegrals:
        rng = np.random.default_rng(seed)
        p, q = np.tril_indices(n_orb)
        pair_of = np.empty((n_orb, n_orb), dtype=int)
        pair_of[p, q] = pair_of[q, p] = np.arange(len(p))
        factors = rng.normal(size=(2 * n_orb, len(p)))
        # Rounded, because the order of summation differs between the entries that symmetry makes equal.
        pairs = (factors.T @ factors / n_orb).round(12)
        h1e = np.triu(rng.normal(size=(n_orb, n_orb)))
        return MolecularIntegrals(
            h1e=h1e + np.triu(h1e, 1).T,
            eri=pairs[pair_of[:, :, None, None], pair_of[None, None, :, :]],
            e_core=1 / 3,
            n_alpha=n_alpha,
            n_beta=n_beta,
            **fields,  # type: ignore[arg-type]
        )

    return make
