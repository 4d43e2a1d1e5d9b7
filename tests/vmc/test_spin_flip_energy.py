"""Energies of a wave function of one spin parity are those of its determinants."""

from __future__ import annotations

import pytest
import torch

from nnqs_lightning.ansatz import TransformerAnsatz
from nnqs_lightning.chem import HubbardChain
from nnqs_lightning.fock.spin_flip import expand
from nnqs_lightning.hamiltonian import MolecularHamiltonian, hamiltonian_on
from nnqs_lightning.sampling import GumbelTopKSampler, SumOverStates, SystematicSampler
from nnqs_lightning.vmc.local_energy import (
    ExactLocalEnergy,
    IncrementalSubspaceLocalEnergy,
    ScreenedLocalEnergy,
    SubspaceLocalEnergy,
)


def make(spin_flip):
    torch.manual_seed(4)
    integrals = HubbardChain(5, u=3.0, n_alpha=2, n_beta=2).integrals()
    ansatz = TransformerAnsatz(integrals, d_model=8, n_heads=2, n_layers=1, spin_flip=spin_flip).double()
    torch.nn.init.normal_(ansatz.decoder.head.weight, std=0.7)
    return ansatz, hamiltonian_on(integrals, ansatz.sector), MolecularHamiltonian(integrals)


@pytest.mark.parametrize("spin_flip", ["even", "odd"])
@pytest.mark.parametrize(
    "local_energy",
    [ExactLocalEnergy(), SubspaceLocalEnergy(), IncrementalSubspaceLocalEnergy(), ScreenedLocalEnergy(threshold=0.0)],
)
def test_every_local_energy_averages_to_the_energy_of_the_whole_vector(spin_flip, local_energy):
    ansatz, hamiltonian, plain = make(spin_flip)
    sample = SumOverStates().sample(ansatz, seed=0, step=0)
    energies = local_energy.evaluate(hamiltonian, ansatz, sample)
    pairs = expand(sample.determinants, ansatz.sector.spin_parity)
    psi = pairs.share * sample.log_psi.exp()[pairs.member]
    image = plain.dense(pairs.determinants).to(psi.dtype) @ psi
    assert psi.norm().item() == pytest.approx(1, abs=1e-12)
    assert (energies.weights * energies.values).sum().real.item() == pytest.approx(torch.vdot(psi, image).real.item())
    torch.testing.assert_close(energies.values, (image / psi)[: len(sample)], atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize("spin_flip", ["even", "odd"])
@pytest.mark.parametrize("sampler", [SystematicSampler(10**15), GumbelTopKSampler(55)])
def test_samplers_meet_each_combination_once(spin_flip, sampler):
    ansatz, *_ = make(spin_flip)
    sampler.n_unique = ansatz.sector.size
    drawn, whole = sampler.sample(ansatz, seed=1, step=0), SumOverStates().sample(ansatz, seed=0, step=0)
    weights = {str(d): w for d, w in zip(whole.determinants.tolist(), whole.weights.tolist(), strict=True)}
    assert len(drawn) == len(whole) == ansatz.sector.size
    assert [weights[str(d)] for d in drawn.determinants.tolist()] == pytest.approx(drawn.weights.tolist(), abs=1e-9)
