"""Second-quantised Hamiltonians acting on packed determinants."""

from nnqs_lightning.hamiltonian.molecular import ConnectedStates, MolecularHamiltonian

__all__ = ["ConnectedStates", "MolecularHamiltonian"]
