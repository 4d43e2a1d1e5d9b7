import pytest
import torch
from toy_ansatz import ToyAnsatz, dense_hamiltonian, full_sample, subspace_energies

from nnqs_lightning.optim.energy_gradient import EnergyGradient


def direction_gradient(ansatz, sample, coefficients):
    surrogate = EnergyGradient.surrogate(coefficients, ansatz.log_psi(sample.determinants))
    return torch.autograd.grad(surrogate, list(ansatz.parameters()), allow_unused=True)


def rayleigh_quotient(ansatz, matrix, determinants):
    log_psi = ansatz.log_psi(determinants)
    psi = torch.exp(log_psi - log_psi.real.max().detach())
    return (psi.conj() @ (matrix.to(psi.dtype) @ psi)).real / psi.abs().square().sum()


@pytest.mark.parametrize("name", ["h2", "lih", "h4"])
@pytest.mark.parametrize("shared", [False, True])
def test_equals_the_derivative_of_the_exact_energy(name, shared):
    sector, matrix = dense_hamiltonian(name)
    ansatz = ToyAnsatz(sector, shared=shared)
    sample = full_sample(ansatz)
    coefficients, _ = EnergyGradient().coefficients(ansatz, sample, subspace_energies(matrix, sample), 1e-3)
    energy = rayleigh_quotient(ansatz, matrix, sample.determinants)
    expected = torch.autograd.grad(energy, list(ansatz.parameters()))
    for found, wanted in zip(direction_gradient(ansatz, sample, coefficients), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)


def test_predicts_finite_differences_of_the_subspace_energy():
    sector, matrix = dense_hamiltonian("lih")
    ansatz = ToyAnsatz(sector)
    sample = full_sample(ansatz, 60)
    matrix = matrix[:60, :60]
    coefficients, _ = EnergyGradient().coefficients(ansatz, sample, subspace_energies(matrix, sample), 1e-3)
    gradient = direction_gradient(ansatz, sample, coefficients)
    generator = torch.Generator().manual_seed(1)
    move = [torch.randn(p.shape, dtype=p.dtype, generator=generator) for p in ansatz.parameters()]

    def energy_at(step):
        with torch.no_grad():
            for p, m in zip(ansatz.parameters(), move, strict=True):
                p.add_(m, alpha=step)
            energy = rayleigh_quotient(ansatz, matrix, sample.determinants)
            for p, m in zip(ansatz.parameters(), move, strict=True):
                p.add_(m, alpha=-step)
        return energy.item()

    step = 1e-4
    slope = (8 * (energy_at(step) - energy_at(-step)) - energy_at(2 * step) + energy_at(-2 * step)) / (12 * step)
    predicted = sum((g * m).sum() for g, m in zip(gradient, move, strict=True)).item()
    assert predicted == pytest.approx(slope, rel=1e-7)


def test_determinants_without_weight_give_no_gradient_and_no_nan():
    sector, matrix = dense_hamiltonian("lih")
    ansatz = ToyAnsatz(sector)
    sample = full_sample(ansatz)
    energies = subspace_energies(matrix, sample)
    plain, _ = EnergyGradient().coefficients(ansatz, sample, energies, 1e-3)
    sample.weights[7] = energies.weights[7] = 0
    energies.values[7] = complex("nan")
    coefficients, _ = EnergyGradient().coefficients(ansatz, sample, energies, 1e-3)
    assert coefficients[7] == 0
    assert torch.isfinite(torch.view_as_real(coefficients)).all()
    assert not torch.equal(plain, coefficients)
