import pytest
import torch

from nnqs_lightning.ansatz import TransformerAnsatz
from nnqs_lightning.chem import Molecule
from nnqs_lightning.hamiltonian import MolecularHamiltonian
from nnqs_lightning.optim import Direction, MinSR, Pretraining
from nnqs_lightning.sampling import SumOverStates
from nnqs_lightning.vmc import ExactLocalEnergy, SubspaceLocalEnergy
from nnqs_lightning.vmc.estimators import estimate_energy

LITHIUM_HYDRIDE = [("Li", 0.0, 0.0, 0.0), ("H", 0.0, 0.0, 1.5949)]


@pytest.mark.parametrize("local_energy", [ExactLocalEnergy(), SubspaceLocalEnergy()])
def test_a_transformer_reaches_full_ci_in_a_few_steps_from_a_fitted_start(local_energy):
    integrals = Molecule(atoms=LITHIUM_HYDRIDE, name="lih", symmetry=True).integrals()
    hamiltonian = MolecularHamiltonian(integrals)
    torch.manual_seed(0)
    ansatz = TransformerAnsatz(integrals, d_model=16, n_heads=2, n_layers=1, point_group=True)
    list(Pretraining(steps=15).run(ansatz, hamiltonian))
    direction = MinSR(damping=1e-3, energy_shift=0.5)
    optimizer = torch.optim.SGD(ansatz.parameters(), lr=1.0)
    for step in range(15):
        sample = SumOverStates().sample(ansatz, seed=0, step=step)
        energies = local_energy.evaluate(hamiltonian, ansatz, sample)
        coefficients, _ = direction.coefficients(ansatz, sample, energies, 1.0)
        optimizer.zero_grad()
        Direction.surrogate(coefficients, ansatz(sample.determinants)).backward()
        optimizer.step()
    exact = torch.linalg.eigvalsh(hamiltonian.dense(hamiltonian.sector.determinants()))[0].item()
    assert exact - 1e-9 < estimate_energy(energies, sample).mean < exact + 2e-4
