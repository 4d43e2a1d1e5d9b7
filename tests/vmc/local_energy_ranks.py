"""One of two ranks that evaluate local energies on shares of one sample; the second share may be empty."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from test_local_energy import ENGINES, LinearAnsatz, draw, random_hamiltonian
from torch import distributed

from nnqs_lightning.fock import SampleBatch

N = 40
SPLITS = (15, N)


def share(sample: SampleBatch, part: slice) -> SampleBatch:
    return SampleBatch(sample.determinants[part], sample.log_psi[part], sample.weights[part], sample.counts[part])


def main(folder: Path, rank: int) -> None:
    store = distributed.FileStore(str(folder / "store"), 2)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    hamiltonian = random_hamiltonian()
    ansatz = LinearAnsatz(hamiltonian.sector)
    sample = draw(ansatz, N)
    results = {}
    for name, engine in ENGINES.items():
        for split in SPLITS:
            part = slice(split) if rank == 0 else slice(split, None)
            energies = engine().evaluate(hamiltonian, ansatz, share(sample, part))
            results[name, split] = (energies.values, energies.weights, energies.stats)
    torch.save(results, folder / f"{rank}.pt")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
