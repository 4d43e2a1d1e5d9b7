"""Features of orbitals against integration on a grid."""

from __future__ import annotations

import numpy as np
import pytest

from nnqs_lightning.chem.cache import dump_integrals, load_integrals
from nnqs_lightning.chem.molecule import Molecule


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NNQS_CACHE", str(tmp_path))


def test_features_agree_with_a_grid_and_survive_the_cache():
    from pyscf import dft, gto

    atoms = [("Li", 0.0, 0.1, 0.3), ("H", 0.0, 0.2, 1.8)]
    integrals = Molecule(atoms=atoms, frozen_core=1).integrals()
    features = integrals.orbital_features
    mole = gto.M(atom=atoms, verbose=0)
    grid = dft.gen_grid.Grids(mole)
    grid.build(with_non0tab=False)
    values = np.einsum("xgu,up->xgp", mole.eval_gto("GTOval_sph_deriv1", grid.coords), integrals.mo_coeff)
    density = grid.weights[:, None] * values[0] ** 2
    centre = (3 * mole.atom_coord(0) + mole.atom_coord(1)) / 4
    positions = grid.coords - centre
    centroid = density.T @ positions
    variance = density.T @ (positions**2).sum(1) - (centroid**2).sum(1)
    kinetic = 0.5 * np.einsum("g,xgp,xgp->p", grid.weights, values[1:], values[1:])
    assert features["spread"].shape == (integrals.n_orb,)
    np.testing.assert_allclose(features["centroid"], centroid, atol=1e-4)
    np.testing.assert_allclose(features["spread"], np.sqrt(variance), atol=1e-3)
    np.testing.assert_allclose(features["kinetic"], kinetic, rtol=1e-3)
    again = load_integrals(dump_integrals(integrals)).orbital_features
    assert set(again) == {"centroid", "spread", "kinetic"}
    assert all(np.array_equal(again[name], features[name]) for name in again)
