"""Leaves are collected and sorted, in little more memory than the sample takes."""

import subprocess
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

from nnqs_lightning.ansatz.base import AutoregressiveAnsatz
from nnqs_lightning.fock import Sector, pack, unpack
from nnqs_lightning.sampling import SystematicSampler, prefix
from nnqs_lightning.sampling.leaves import Leaves, collect, concatenate

SAMPLE_BYTES = 16 + 16 + 8 + 8
"""Words, log ψ, weight and walkers of a determinant."""


@dataclass
class Prefixes:
    """Decoding state of :class:`UniformAnsatz`: electrons yet to place."""

    left: int
    alpha: Tensor
    beta: Tensor

    def __len__(self) -> int:
        return len(self.alpha)


class UniformAnsatz(AutoregressiveAnsatz):
    """All determinants alike, without a network, so that a large draw takes a second."""

    def __init__(self, sector: Sector) -> None:
        super().__init__()
        self.sector = sector
        self.nodes = 0

    def begin(self) -> Prefixes:
        return Prefixes(self.sector.n_orb, torch.tensor([self.sector.n_alpha]), torch.tensor([self.sector.n_beta]))

    def log_conditionals(self, state: Prefixes) -> Tensor:
        self.nodes += len(state)
        alpha, beta = state.alpha / state.left, state.beta / state.left
        tokens = [(1 - alpha) * (1 - beta), alpha * (1 - beta), (1 - alpha) * beta, alpha * beta]
        return torch.stack(tokens, 1).double().log()

    def advance(self, state: Prefixes, parents: Tensor, tokens: Tensor) -> Prefixes:
        return Prefixes(state.left - 1, state.alpha[parents] - (tokens & 1), state.beta[parents] - (tokens >> 1))

    def phase(self, determinants: Tensor) -> Tensor:
        return torch.zeros(len(determinants), dtype=torch.float64)

    def to_determinants(self, tokens: Tensor) -> Tensor:
        return pack(torch.stack([tokens & 1, tokens >> 1], dim=2))

    def to_tokens(self, determinants: Tensor) -> Tensor:
        occupation = unpack(determinants, self.sector.n_orb)
        return occupation[:, :, 0] + 2 * occupation[:, :, 1]

    def conditionals(self, tokens: Tensor) -> Tensor:
        raise NotImplementedError

    def log_psi(self, determinants: Tensor) -> Tensor:
        raise NotImplementedError


def print_peaks() -> None:
    """Peak memory of this process in bytes, determinants and decoded nodes, after a small and after a large draw."""
    torch.set_num_threads(1)
    ansatz = UniformAnsatz(Sector(20, 4, 4))
    for n_walkers in (30_000, 230_000):
        batch = SystematicSampler(n_walkers, chunk_size=1024).sample(ansatz, seed=0, step=0)
        print(peak_bytes(), len(batch), ansatz.nodes)


def peak_bytes() -> int:
    """Largest resident memory of this program; getrusage would hand on that of the process which forked it."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_a_draw_takes_at_most_twelve_bytes_a_node_beyond_the_sample():
    script = "from test_leaves import print_peaks; print_peaks()"
    lines = subprocess.check_output([sys.executable, "-c", script], cwd=__file__.rpartition("/")[0], text=True)
    small, large = (torch.tensor(list(map(int, line.split()))) for line in lines.splitlines())
    memory, determinants, nodes = (large - small).tolist()
    assert determinants == 200_000
    assert determinants < nodes
    assert 0 < memory - SAMPLE_BYTES * determinants < 12 * nodes
    # Nodes are many in this tree: of what has been found no more than half a sample is kept beside the sample.
    assert memory < 1.5 * SAMPLE_BYTES * determinants


def random_leaves(n: int, n_orb: int) -> Leaves:
    torch.manual_seed(n)
    keys = prefix.pack(torch.randint(0, 4, (n, n_orb)))
    return Leaves(keys, torch.arange(n), torch.rand(n, dtype=torch.float64))


def test_many_parts_are_collected_as_one():
    leaves = random_leaves(50_000, 12)
    bounds = [0, 3, 3, 20_000, 20_001, 49_000, 50_000]
    parts = [leaves[start:stop] for start, stop in pairwise(bounds)]
    for together in (collect(iter(parts)), concatenate(parts)):
        assert all(torch.equal(a, b) for a, b in zip(together.columns(), leaves.columns(), strict=True))


@pytest.mark.parametrize("n_orb", [7, 31, 40])
def test_sorting_keeps_rows_together(n_orb):
    leaves, reference = random_leaves(1000, n_orb), random_leaves(1000, n_orb)
    leaves.sort()
    tokens = prefix.unpack(leaves.keys, n_orb).tolist()
    assert tokens == sorted(tokens)
    assert torch.equal(leaves.keys, reference.keys[leaves.values])
    assert torch.equal(leaves.log_p, reference.log_p[leaves.values])
