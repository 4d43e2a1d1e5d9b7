"""After a shortage of memory the energies stay what they were, and the pieces become smaller."""

from __future__ import annotations

from pathlib import Path

import pytest
import small
import torch

from nnqs_lightning.ansatz import TransformerAnsatz
from nnqs_lightning.chem import HubbardChain
from nnqs_lightning.optim import EnergyGradient
from nnqs_lightning.sampling import GumbelTopKSampler, Sampler, SystematicSampler
from nnqs_lightning.training.memory_watch import MemoryWatch
from nnqs_lightning.training.module import NNQSModule
from nnqs_lightning.vmc import ExactLocalEnergy


def final_energy(folder: Path, sampler: Sampler) -> tuple[float, int, int]:
    """Energy, and what became of the sizes of the pieces."""
    small.module()  # seeds
    module = NNQSModule(
        HubbardChain(n_sites=6, u=2.0),
        ansatz=small.SMALL,
        local_energy=ExactLocalEnergy(max_chunk=64),
        direction=EnergyGradient(),
        pretraining=None,
    )
    trainer = small.trainer(folder, 3, callbacks=[MemoryWatch()])
    data = small.data(sampler)
    trainer.fit(module, data)
    energy = float(trainer.callback_metrics["energy/mean"])
    return energy, module.local_energy.max_chunk, data.sampler.chunk_size


def sampler(kind: type) -> Sampler:
    return kind(100, chunk_size=64)


@pytest.mark.parametrize("kind", [SystematicSampler, GumbelTopKSampler])
@pytest.mark.parametrize("method", ["log_psi", "log_conditionals"])
def test_a_shortage_in_sampling_or_local_energies_is_survived(tmp_path: Path, monkeypatch, kind, method: str) -> None:
    expected, *_ = final_energy(tmp_path / "roomy", sampler(kind))
    original = getattr(TransformerAnsatz, method)

    def short(self, argument):
        if not torch.is_grad_enabled() and len(argument) > 8:
            raise MemoryError
        return original(self, argument)

    monkeypatch.setattr(TransformerAnsatz, method, short)
    with pytest.warns(UserWarning, match=r"memory was short. From here on: .*chunk_size = 32, .*max_chunk = 32"):
        energy, max_chunk, chunk_size = final_energy(tmp_path / "short", sampler(kind))
    assert energy == pytest.approx(expected, abs=1e-6)
    assert max_chunk == chunk_size < 64
