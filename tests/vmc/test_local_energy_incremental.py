"""The kept Hamiltonian changes no bit, whatever it has seen."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch
from torch import Tensor

from nnqs_lightning.chem.integrals import MolecularIntegrals
from nnqs_lightning.errors import UserError
from nnqs_lightning.hamiltonian import MolecularHamiltonian
from nnqs_lightning.hamiltonian.kept import ENTRY_BYTES, KeptHamiltonian
from nnqs_lightning.vmc.local_energy import IncrementalSubspaceLocalEnergy


def random_integrals(n: int, n_alpha: int = 3, n_beta: int = 3) -> MolecularIntegrals:
    """Dense random integrals with the right symmetries."""
    generator = torch.Generator().manual_seed(0)
    h1e = torch.randn((n, n), dtype=torch.float64, generator=generator)
    pairs = torch.randn((4, n, n), dtype=torch.float64, generator=generator)
    pairs = pairs + pairs.mT
    eri = torch.einsum("kpq,krs->pqrs", pairs, pairs)
    return MolecularIntegrals((h1e + h1e.T).numpy(), eri.numpy(), 0.3, n_alpha, n_beta)


@pytest.fixture(scope="module", params=[(7, 3, 2), (66, 1, 1)], ids=["one word", "two words"])
def hamiltonian(request: pytest.FixtureRequest) -> MolecularHamiltonian:
    return MolecularHamiltonian(random_integrals(*request.param))


def drifting_sets(hamiltonian: MolecularHamiltonian) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Sets that overlap from one to the next, in any order, some determinants with no row wanted."""
    generator = torch.Generator().manual_seed(1)
    pool = hamiltonian.sector.determinants()
    pool = pool[torch.randperm(len(pool), generator=generator)]
    sets = []
    for step in range(8):
        chosen = pool[40 * step : 40 * step + 200]
        chosen = chosen[torch.randperm(len(chosen), generator=generator)]
        log_psi = torch.randn(len(chosen), dtype=torch.complex128, generator=generator)
        rows = torch.randperm(len(chosen), generator=generator)[:150]
        sets.append((chosen, log_psi, rows))
    return sets


@pytest.mark.parametrize("room", [None, 300], ids=["all kept", "some leave"])
def test_history_does_not_change_a_bit(hamiltonian: MolecularHamiltonian, room: int | None) -> None:
    sets = drifting_sets(hamiltonian)
    largest = max(hamiltonian.sparse(determinants).nnz for determinants, _, _ in sets)
    max_bytes = 1 << 30 if room is None else ENTRY_BYTES * (largest * room // 200)
    engine = IncrementalSubspaceLocalEnergy(max_bytes=max_bytes)
    shares = []
    for determinants, log_psi, rows in sets:
        warm, stats = engine.values(hamiltonian, determinants, log_psi, rows)
        cold, _ = IncrementalSubspaceLocalEnergy(max_bytes=max_bytes).values(hamiltonian, determinants, log_psi, rows)
        assert torch.equal(warm, cold)
        plain = hamiltonian.local_energies(determinants, log_psi, rows)
        torch.testing.assert_close(warm, plain, rtol=1e-10, atol=1e-10)
        shares.append(stats["local_energy/kept_rows"])
        assert engine._kept.matrix.nnz * ENTRY_BYTES <= max_bytes
    assert shares[0] == 0
    assert min(shares[1:]) > 0.4


def test_members_not_used_for_longest_leave(hamiltonian: MolecularHamiltonian) -> None:
    sets = drifting_sets(hamiltonian)
    nnz = hamiltonian.sparse(sets[0][0]).nnz
    engine = IncrementalSubspaceLocalEnergy(max_bytes=2 * ENTRY_BYTES * nnz)
    for determinants, log_psi, rows in sets:
        engine.values(hamiltonian, determinants, log_psi, rows)
    members = {tuple(row) for row in engine._kept.members.flatten(1).tolist()}
    assert members >= {tuple(row) for row in sets[-1][0].flatten(1).tolist()}
    assert not members & {tuple(row) for row in sets[0][0].flatten(1).tolist()} - {
        tuple(row) for later, _, _ in sets[1:] for row in later.flatten(1).tolist()
    }


def test_a_set_too_large_to_keep_is_summed_without(hamiltonian: MolecularHamiltonian) -> None:
    determinants, log_psi, rows = drifting_sets(hamiltonian)[0]
    values, stats = IncrementalSubspaceLocalEnergy(max_bytes=100).values(hamiltonian, determinants, log_psi, rows)
    assert torch.equal(values, hamiltonian.local_energies(determinants, log_psi, rows))
    assert "local_energy/kept_rows" not in stats


@pytest.mark.parametrize("spare", [-1, 0])
def test_the_bound_is_that_of_the_entries_themselves(
    hamiltonian: MolecularHamiltonian, spare: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = drifting_sets(hamiltonian)[:2]
    determinants, log_psi, rows = sets[1]
    matrix = hamiltonian.sparse(determinants)[rows.numpy()]
    max_bytes = ENTRY_BYTES * (np.count_nonzero(matrix.data) + spare)
    # The estimate from some rows is not what holds the bound.
    monkeypatch.setattr(KeptHamiltonian, "may_fit", lambda *_: True)
    fresh, used = (IncrementalSubspaceLocalEnergy(max_bytes=max_bytes) for _ in range(2))
    used.values(hamiltonian, *sets[0])
    for engine in (fresh, used):
        values, stats = engine.values(hamiltonian, determinants, log_psi, rows)
        assert ("local_energy/kept_rows" in stats) == (spare == 0)
        assert engine._kept.matrix.nnz * ENTRY_BYTES <= max_bytes
        torch.testing.assert_close(
            values, hamiltonian.local_energies(determinants, log_psi, rows), rtol=1e-10, atol=1e-10
        )
    # A refused set leaves nothing half done behind.
    after = used.values(hamiltonian, *sets[0])[0]
    torch.testing.assert_close(after, hamiltonian.local_energies(*sets[0]), rtol=1e-10, atol=1e-10)


def test_building_stays_within_the_memory() -> None:
    hamiltonian = MolecularHamiltonian(random_integrals(10))
    determinants = hamiltonian.sector.determinants()
    determinants = determinants[torch.randperm(len(determinants), generator=torch.Generator().manual_seed(3))[:4000]]
    log_psi = torch.zeros(len(determinants), dtype=torch.complex128)
    max_bytes = ENTRY_BYTES * 1_200_000
    engine = IncrementalSubspaceLocalEnergy(max_bytes=max_bytes)
    peaks = []
    for part in (slice(0, 2500), slice(1500, 4000), slice(0, 2000)):
        rows = torch.arange(part.stop - part.start)
        tracemalloc.start()
        _, stats = engine.values(hamiltonian, determinants[part], log_psi[part], rows)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert "local_energy/kept_rows" in stats
    assert engine._kept.matrix.nnz > 300_000
    assert max(peaks) < max_bytes


def test_kept_matrix_is_the_sparse_matrix_of_its_members(hamiltonian: MolecularHamiltonian) -> None:
    engine = IncrementalSubspaceLocalEnergy()
    for determinants, log_psi, _ in drifting_sets(hamiltonian)[:3]:
        engine.values(hamiltonian, determinants, log_psi, torch.arange(len(determinants)))
    kept = engine._kept
    expected = hamiltonian.sparse(kept.members)
    np.testing.assert_array_equal(kept.matrix.indices, expected.indices)
    np.testing.assert_array_equal(kept.matrix.data, expected.data)


def test_repeated_determinants_are_refused(hamiltonian: MolecularHamiltonian) -> None:
    determinants, log_psi, _ = drifting_sets(hamiltonian)[0]
    twice = torch.cat([determinants, determinants[:2]])
    with pytest.raises(UserError, match="2 determinants occur twice"):
        IncrementalSubspaceLocalEnergy().values(hamiltonian, twice, torch.cat([log_psi, log_psi[:2]]), torch.arange(5))
