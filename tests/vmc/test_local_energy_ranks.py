"""Two ranks agree with one, an empty rank included."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch
from local_energy_ranks import SPLITS, N
from test_local_energy import ENGINES, LinearAnsatz, draw, random_hamiltonian


def test_two_ranks_agree_with_one(tmp_path: Path) -> None:
    script = Path(__file__).with_name("local_energy_ranks.py")
    ranks = [subprocess.Popen([sys.executable, str(script), str(tmp_path), str(rank)]) for rank in range(2)]
    assert [rank.wait(timeout=300) for rank in ranks] == [0, 0]
    shares = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    hamiltonian = random_hamiltonian()
    ansatz = LinearAnsatz(hamiltonian.sector)
    for name, engine in ENGINES.items():
        alone = engine().evaluate(hamiltonian, ansatz, draw(ansatz, N))
        for split in SPLITS:
            values, weights = (torch.cat([share[name, split][k] for share in shares]) for k in (0, 1))
            torch.testing.assert_close(values, alone.values, rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(weights, alone.weights, rtol=1e-12, atol=0)
            assert len(shares[1][name, split][0]) == N - split
            variances = [share[name, split][2].get("local_energy/screening_variance") for share in shares]
            assert variances[0] == variances[1]
