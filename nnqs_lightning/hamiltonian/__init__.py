"""Second-quantised Hamiltonians acting on packed determinants."""

from nnqs_lightning.hamiltonian.molecular import MolecularHamiltonian

__all__ = ["MolecularHamiltonian"]
