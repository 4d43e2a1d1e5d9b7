"""Both local-energy estimates against a dense Hamiltonian."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from nnqs_lightning.ansatz.base import Ansatz
from nnqs_lightning.chem.integrals import MolecularIntegrals
from nnqs_lightning.errors import UserError
from nnqs_lightning.fock import SampleBatch, Sector, unpack
from nnqs_lightning.hamiltonian import MolecularHamiltonian
from nnqs_lightning.vmc.base import LocalEnergy
from nnqs_lightning.vmc.local_energy import (
    ExactLocalEnergy,
    IncrementalSubspaceLocalEnergy,
    ScreenedLocalEnergy,
    SubspaceLocalEnergy,
    SubspaceWeights,
)
from nnqs_lightning.vmc.local_energy.amplitudes import AmplitudeCache, SortedAmplitudeCache


class LinearAnsatz(Ansatz):
    """log ψ linear in pair occupations, normalised over the sector; it counts what it is asked."""

    def __init__(self, sector: Sector, steepness: float = 0.3) -> None:
        super().__init__()
        self.sector = sector
        n_features = (2 * sector.n_orb) ** 2
        generator = torch.Generator().manual_seed(5)
        amplitude, phase = torch.randn((2, n_features), dtype=torch.float64, generator=generator)
        self.weight = nn.Parameter(torch.complex(steepness * amplitude, phase))
        self.asked: list[Tensor] = []
        self.log_norm = torch.logsumexp(2 * self._log_psi(sector.determinants()).real, 0).detach() / 2

    def log_psi(self, determinants: Tensor) -> Tensor:
        self.asked.append(determinants)
        return self._log_psi(determinants) - self.log_norm

    def _log_psi(self, determinants: Tensor) -> Tensor:
        bits = unpack(determinants, self.sector.n_orb).flatten(1).to(torch.complex128)
        return (bits[:, :, None] * bits[:, None, :]).flatten(1) @ self.weight


def random_hamiltonian() -> MolecularHamiltonian:
    generator = torch.Generator().manual_seed(6)
    n = 6
    h1e = torch.randn((n, n), dtype=torch.float64, generator=generator)
    pairs = torch.randn((5, n, n), dtype=torch.float64, generator=generator)
    pairs = pairs + pairs.mT
    eri = torch.einsum("kpq,krs->pqrs", pairs, pairs)
    return MolecularHamiltonian(MolecularIntegrals((h1e + h1e.T).numpy(), eri.numpy(), 0.3, n_alpha=3, n_beta=2))


@pytest.fixture(scope="module")
def hamiltonian() -> MolecularHamiltonian:
    return random_hamiltonian()


ENGINES: dict[str, Callable[[], LocalEnergy]] = {
    "exact": ExactLocalEnergy,
    "screened": partial(ScreenedLocalEnergy, threshold=4.0, n_draws=2),
    "subspace": SubspaceLocalEnergy,
    "walkers": partial(SubspaceLocalEnergy, weights=SubspaceWeights.walkers),
    "incremental": IncrementalSubspaceLocalEnergy,
}


def draw(ansatz: Ansatz, n: int) -> SampleBatch:
    """``n`` determinants of the sector with invented walkers."""
    determinants = ansatz.sector.determinants()
    chosen = determinants[torch.randperm(len(determinants), generator=torch.Generator().manual_seed(7))[:n]]
    counts = torch.arange(1, n + 1)
    with torch.no_grad():
        log_psi = ansatz.log_psi(chosen)
    return SampleBatch(chosen, log_psi, counts.double() / counts.sum(), counts, int(counts.sum()))


def dense_local_energies(
    hamiltonian: MolecularHamiltonian, ansatz: LinearAnsatz, rows: Tensor, columns: Tensor
) -> Tensor:
    everything = torch.cat([rows, columns])
    matrix = torch.stack([hamiltonian.matrix_elements(rows[k].expand_as(columns), columns) for k in range(len(rows))])
    log_psi = ansatz.log_psi(everything).detach()
    psi_rows, psi_columns = log_psi[: len(rows)].exp(), log_psi[len(rows) :].exp()
    return (matrix.to(psi_columns.dtype) @ psi_columns) / psi_rows


@pytest.mark.parametrize(
    "engine",
    [ExactLocalEnergy(), ExactLocalEnergy(max_chunk=7, cache_bytes=0, buffer_bytes=100_000)],
    ids=["kept", "tight"],
)
def test_exact_values_are_rows_of_the_whole_hamiltonian(
    hamiltonian: MolecularHamiltonian, engine: ExactLocalEnergy
) -> None:
    ansatz = LinearAnsatz(hamiltonian.sector)
    sample = draw(ansatz, 50)
    result = engine.evaluate(hamiltonian, ansatz, sample)
    expected = dense_local_energies(hamiltonian, ansatz, sample.determinants, hamiltonian.sector.determinants())
    torch.testing.assert_close(result.values, expected, rtol=1e-11, atol=1e-10)
    torch.testing.assert_close(result.weights, sample.weights)
    assert not result.variational
    assert not result.values.requires_grad


def test_exact_asks_for_every_unsampled_determinant_once_in_bounded_chunks(hamiltonian: MolecularHamiltonian) -> None:
    ansatz = LinearAnsatz(hamiltonian.sector)
    sample = draw(ansatz, 50)
    ansatz.asked.clear()
    result = ExactLocalEnergy(max_chunk=16, buffer_bytes=200_000).evaluate(hamiltonian, ansatz, sample)
    assert max(len(part) for part in ansatz.asked) <= 16
    asked = torch.cat(ansatz.asked)
    assert len(torch.cat([asked, sample.determinants]).unique(dim=0)) == len(asked) + len(sample)
    assert result.stats["local_energy/evaluated"] == len(asked)


@pytest.mark.parametrize("cache_bytes", [0, 3000, 1 << 30])
def test_amplitudes_kept_by_sorting_are_those_kept_in_a_table(
    hamiltonian: MolecularHamiltonian, cache_bytes: int
) -> None:
    ansatz = LinearAnsatz(hamiltonian.sector)
    sample = draw(ansatz, 20)
    caches = [
        kind(ansatz, sample.determinants, sample.log_psi, 16, cache_bytes)
        for kind in (AmplitudeCache, SortedAmplitudeCache)
    ]
    for part in sample.determinants.split(5):
        connected = hamiltonian.connected_states(part).determinants
        values = [cache.log_psi(connected) for cache in caches]
        torch.testing.assert_close(values[1], values[0], rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(values[1], ansatz.log_psi(connected).detach(), rtol=1e-12, atol=1e-12)
    if cache_bytes != 3000:
        assert caches[0].n_evaluated == caches[1].n_evaluated


def test_exact_energy_of_a_whole_sector_is_the_rayleigh_quotient(hamiltonian: MolecularHamiltonian) -> None:
    ansatz = LinearAnsatz(hamiltonian.sector)
    determinants = hamiltonian.sector.determinants()
    log_psi = ansatz.log_psi(determinants).detach()
    sample = SampleBatch(determinants, log_psi, (2 * log_psi.real).exp())
    result = ExactLocalEnergy().evaluate(hamiltonian, ansatz, sample)
    psi = log_psi.exp()
    expected = (psi.conj() @ (hamiltonian.dense(determinants).to(psi.dtype) @ psi)).real
    torch.testing.assert_close((result.weights * result.values).sum().real, expected, rtol=1e-12, atol=1e-11)
    assert result.variational


def test_subspace_energy_is_the_rayleigh_quotient_of_the_projected_state(hamiltonian: MolecularHamiltonian) -> None:
    ansatz = LinearAnsatz(hamiltonian.sector)
    sample = draw(ansatz, 40)
    ansatz.asked.clear()
    result = SubspaceLocalEnergy().evaluate(hamiltonian, ansatz, sample)
    assert not ansatz.asked
    psi = sample.log_psi.exp()
    matrix = hamiltonian.dense(sample.determinants).to(psi.dtype)
    torch.testing.assert_close(result.values, (matrix @ psi) / psi, rtol=1e-11, atol=1e-10)
    quotient = (psi.conj() @ matrix @ psi) / psi.abs().square().sum()
    torch.testing.assert_close((result.weights * result.values).sum(), quotient, rtol=1e-11, atol=1e-11)
    assert result.variational
    assert quotient.real > torch.linalg.eigvalsh(hamiltonian.dense(hamiltonian.sector.determinants()))[0]


def test_walker_weights_are_the_samplers_and_not_variational(hamiltonian: MolecularHamiltonian) -> None:
    ansatz = LinearAnsatz(hamiltonian.sector)
    sample = draw(ansatz, 40)
    result = SubspaceLocalEnergy(weights=SubspaceWeights.walkers).evaluate(hamiltonian, ansatz, sample)
    torch.testing.assert_close(result.weights, sample.weights)
    assert not result.variational


@pytest.mark.parametrize("engine", ENGINES)
def test_underflowing_amplitudes_give_finite_energies(hamiltonian: MolecularHamiltonian, engine: str) -> None:
    ansatz = LinearAnsatz(hamiltonian.sector, steepness=200.0)
    sample = draw(ansatz, 300)
    assert sample.log_psi.real.min() < -800
    result = ENGINES[engine]().evaluate(hamiltonian, ansatz, sample)
    assert torch.view_as_real(result.values).isfinite().all()
    assert torch.view_as_real(result.weights * result.values).isfinite().all()


@pytest.mark.parametrize("engine", ENGINES)
def test_an_empty_rank_gives_no_energies(hamiltonian: MolecularHamiltonian, engine: str) -> None:
    ansatz = LinearAnsatz(hamiltonian.sector)
    result = ENGINES[engine]().evaluate(hamiltonian, ansatz, draw(ansatz, 0))
    assert len(result.values) == len(result.weights) == 0


def test_bounds_that_cannot_work_are_refused(hamiltonian: MolecularHamiltonian) -> None:
    with pytest.raises(UserError, match="max_chunk"):
        ExactLocalEnergy(max_chunk=0)
    with pytest.raises(UserError, match="cache_bytes"):
        ExactLocalEnergy(cache_bytes=-1)
    with pytest.raises(UserError, match="max_bytes"):
        IncrementalSubspaceLocalEnergy(max_bytes=0)
    with pytest.raises(UserError, match="threshold"):
        ScreenedLocalEnergy(threshold=-1.0)
    with pytest.raises(UserError, match="n_draws"):
        ScreenedLocalEnergy(n_draws=1)
    ansatz = LinearAnsatz(hamiltonian.sector)
    with pytest.raises(UserError, match="buffer_bytes"):
        ExactLocalEnergy(buffer_bytes=1000).evaluate(hamiltonian, ansatz, draw(ansatz, 3))


def test_screened_energies_are_unbiased_and_know_their_variance(hamiltonian: MolecularHamiltonian) -> None:
    ansatz = LinearAnsatz(hamiltonian.sector, steepness=0.1)
    sample = draw(ansatz, 20)
    exact = ExactLocalEnergy().evaluate(hamiltonian, ansatz, sample)
    estimates, variances = [], []
    for seed in range(150):
        result = ScreenedLocalEnergy(threshold=4.0, n_draws=3, seed=seed).evaluate(hamiltonian, ansatz, sample)
        estimates.append((result.weights * result.values).sum())
        variances.append(result.stats["local_energy/screening_variance"])
    assert not result.variational
    assert result.stats["local_energy/connected"] < 0.5 * exact.stats["local_energy/connected"]
    noise = torch.stack(estimates) - (exact.weights * exact.values).sum()
    spread = noise.abs().square().mean()
    assert spread > 1e-4
    torch.testing.assert_close(torch.tensor(variances).mean().double(), spread, rtol=0.3, atol=0)
    assert noise.mean().abs() < 4 * (spread / len(noise)).sqrt()


def test_screened_draws_depend_on_seed_step_and_determinant_alone(hamiltonian: MolecularHamiltonian) -> None:
    ansatz = LinearAnsatz(hamiltonian.sector)
    sample = draw(ansatz, 20)
    engine = ScreenedLocalEnergy(threshold=4.0, n_draws=2)
    values = engine.evaluate(hamiltonian, ansatz, sample).values
    assert torch.equal(values, engine.evaluate(hamiltonian, ansatz, sample).values)
    flipped = SampleBatch(sample.determinants.flip(0), sample.log_psi.flip(0), sample.weights.flip(0))
    torch.testing.assert_close(engine.evaluate(hamiltonian, ansatz, flipped).values.flip(0), values, rtol=0, atol=0)
    sample.step = 1
    assert not torch.equal(values, engine.evaluate(hamiltonian, ansatz, sample).values)


def test_a_threshold_of_zero_leaves_nothing_to_chance(hamiltonian: MolecularHamiltonian) -> None:
    ansatz = LinearAnsatz(hamiltonian.sector)
    sample = draw(ansatz, 20)
    screened = ScreenedLocalEnergy(threshold=0.0).evaluate(hamiltonian, ansatz, sample)
    exact = ExactLocalEnergy().evaluate(hamiltonian, ansatz, sample)
    torch.testing.assert_close(screened.values, exact.values, rtol=1e-13, atol=0)
    assert screened.stats["local_energy/screening_variance"] == 0
