"""One rank of natural-gradient steps dealt to 1, 2 and 4 ranks; writes the results for its own rows to files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from toy_ansatz import ToyAnsatz, dense_hamiltonian, full_sample, subspace_energies

from nnqs_lightning.ansatz import TransformerAnsatz
from nnqs_lightning.chem import Molecule
from nnqs_lightning.hamiltonian import MolecularHamiltonian
from nnqs_lightning.optim import Direction, MinSR, Pretraining, Spring
from nnqs_lightning.vmc.estimators import estimate_energy

N = 60
SIZES = (1, 2, 4)
FIT_STEPS, FIT_RANKS = 6, 2
CASES = ((40, False), (40, True), (3, True))
"""(width, shared): in the space of samples, wide, and of parameters, narrow."""


def run(rank: int, size: int, width: int, shared: bool) -> dict[str, Any]:
    sector, matrix = dense_hamiltonian("lih")
    ansatz = ToyAnsatz(sector, width=width, shared=shared)
    sample = full_sample(ansatz, N)
    energies = subspace_energies(matrix[:N, :N], sample)
    own = torch.arange(N)
    if size > 1:
        # Uneven shares; the last of four ranks holds nothing.
        holders = 3 if size == 4 else size
        own = own[(own**2 // 7) % holders == rank]
    sample.determinants, sample.log_psi, sample.weights = (
        t[own] for t in (sample.determinants, sample.log_psi, sample.weights)
    )
    energies.values, energies.weights = energies.values[own], energies.weights[own]
    minsr, _ = MinSR().coefficients(ansatz, sample, energies, 1.0)
    direction = Spring(momentum=0.7)
    generator = torch.Generator().manual_seed(0)
    direction.observe_gradient(
        [torch.randn(p.shape, dtype=torch.float64, generator=generator) for p in ansatz.parameters()]
    )
    spring, stats = direction.coefficients(ansatz, sample, energies, 1.0)
    surrogate = Direction.surrogate(spring, ansatz.log_psi(sample.determinants))
    gradients = torch.autograd.grad(surrogate, list(ansatz.parameters()), materialize_grads=True)
    gradient = torch.cat([g.flatten() for g in gradients])
    if size > 1:
        distributed.all_reduce(gradient)
    energy = estimate_energy(energies, sample)
    return {"own": own, "minsr": minsr, "spring": spring, "stats": stats, "gradient": gradient, "energy": energy}


def fitted() -> torch.Tensor:
    """Parameters after a few steps of a supervised start; the ranks share out the target's determinants."""
    integrals = Molecule(atoms=[("Li", 0, 0, 0), ("H", 0, 0, 1.5949)], name="lih").integrals()
    torch.manual_seed(0)
    ansatz = TransformerAnsatz(integrals, d_model=8, n_heads=2, n_layers=1).double()
    list(Pretraining(steps=FIT_STEPS).run(ansatz, MolecularHamiltonian(integrals)))
    return torch.cat([p.detach().flatten() for p in ansatz.parameters()])


def main(folder: Path, rank: int) -> None:
    for size in SIZES:
        if rank >= size:
            continue
        if size > 1:
            store = distributed.FileStore(str(folder / f"store{size}"), size)
            distributed.init_process_group("gloo", store=store, rank=rank, world_size=size)
        results: dict[Any, Any] = {case: run(rank, size, *case) for case in CASES}
        if size <= FIT_RANKS:
            results["fit"] = fitted()
        torch.save(results, folder / f"{rank}_of_{size}.pt")
        if size > 1:
            distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
