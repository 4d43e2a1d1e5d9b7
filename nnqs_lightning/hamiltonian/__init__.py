"""Second-quantised Hamiltonians acting on packed determinants."""

from nnqs_lightning.hamiltonian.molecular import ConnectedStates, MolecularHamiltonian
from nnqs_lightning.hamiltonian.spin_flip import SpinFlipHamiltonian, hamiltonian_on
from nnqs_lightning.hamiltonian.strategy import Strategy

__all__ = ["ConnectedStates", "MolecularHamiltonian", "SpinFlipHamiltonian", "Strategy", "hamiltonian_on"]
