"""One rank of a natural-gradient step on a deal of determinants; writes coefficients of its own rows to a file."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import distributed
from toy import ToyAnsatz, dense_hamiltonian, full_sample, subspace_energies

from nnqs_lightning.optim import Direction, MinSR, Spring
from nnqs_lightning.vmc.estimators import estimate_energy

N = 60


def run(rank: int, size: int, width: int, shared: bool) -> dict[str, object]:
    sector, matrix = dense_hamiltonian("lih")
    ansatz = ToyAnsatz(sector, width=width, shared=shared)
    sample = full_sample(ansatz, N)
    energies = subspace_energies(matrix[:N, :N], sample)
    # The last of four ranks holds nothing.
    own = slice(rank, min(N, N if size < 4 or rank < size - 1 else 0), max(1, size - (size == 4)))
    sample.determinants, sample.log_psi, sample.weights = (
        t[own] for t in (sample.determinants, sample.log_psi, sample.weights)
    )
    energies.values, energies.weights = energies.values[own], energies.weights[own]
    first, _ = MinSR().coefficients(ansatz, sample, energies, 1.0)
    spring = Spring(momentum=0.7)
    generator = torch.Generator().manual_seed(0)
    spring.observe_gradient(
        [torch.randn(p.shape, dtype=torch.float64, generator=generator) for p in ansatz.parameters()]
    )
    second, stats = spring.coefficients(ansatz, sample, energies, 1.0)
    surrogate = Direction.surrogate(second, ansatz.log_psi(sample.determinants))
    gradients = torch.autograd.grad(surrogate, list(ansatz.parameters()), materialize_grads=True)
    flat = torch.cat([g.flatten() for g in gradients])
    if size > 1:
        distributed.all_reduce(flat)
    estimate = estimate_energy(energies, sample)
    return {
        "own": torch.arange(N)[own],
        "minsr": first,
        "spring": second,
        "stats": stats,
        "gradient": flat,
        "energy": estimate,
    }


def main(folder: str, rank: int, size: int, width: int, shared: bool) -> None:
    if size > 1:
        store = distributed.FileStore(str(Path(folder) / "store"), size)
        distributed.init_process_group("gloo", store=store, rank=rank, world_size=size)
    torch.save(run(rank, size, width, shared), Path(folder) / f"{rank}.pt")
    if size > 1:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5] == "shared")
