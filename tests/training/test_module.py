"""A training step does what the formulas say, whatever way it is cut."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from small import data, module, trainer

from nnqs_lightning.chem import HubbardChain
from nnqs_lightning.errors import UserError
from nnqs_lightning.sampling import SumOverStates
from nnqs_lightning.training.metrics import EnergyMetrics
from nnqs_lightning.vmc import ExactLocalEnergy, LocalEnergies
from nnqs_lightning.vmc.estimators import estimate_energy


class Gradients(Callback):
    """Keeps the gradient of the first step."""

    def __init__(self) -> None:
        self.values: list[torch.Tensor] = []

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        self.values = self.values or [p.grad.clone() for p in pl_module.ansatz.parameters()]


def first_gradient(folder: Path, **options: Any) -> torch.Tensor:
    seen = Gradients()
    trainer(folder, 1, callbacks=[seen], precision="64-true").fit(module(**options), data(SumOverStates()))
    return torch.cat([g.flatten() for g in seen.values])


def energy_of(network: Any) -> torch.Tensor:
    """⟨ψ|H|ψ⟩ / ⟨ψ|ψ⟩ from the dense matrix."""
    determinants = network.hamiltonian.sector.determinants()
    dense = network.hamiltonian.dense(determinants)
    psi = network.ansatz.log_psi(determinants).exp()
    return (psi.conj() @ (dense.to(psi.dtype) @ psi)).real / (psi.conj() @ psi).real


def test_the_gradient_is_that_of_the_energy(tmp_path: Path):
    network = module().double()
    exact = torch.autograd.grad(energy_of(network), list(network.ansatz.parameters()))
    found = first_gradient(tmp_path, local_energy=ExactLocalEnergy())
    torch.testing.assert_close(found, torch.cat([g.flatten() for g in exact]), rtol=1e-8, atol=1e-10)


def test_a_step_in_pieces_has_the_same_gradient(tmp_path: Path):
    torch.testing.assert_close(first_gradient(tmp_path, max_rows=5), first_gradient(tmp_path), rtol=1e-10, atol=1e-12)


def test_training_lowers_the_energy_to_the_ground_state(tmp_path: Path):
    network = module(optimizer=partial(torch.optim.AdamW, lr=2e-2))
    trainer(tmp_path, 150).fit(network, data(SumOverStates()))
    determinants = network.hamiltonian.sector.determinants()
    ground = torch.linalg.eigvalsh(network.hamiltonian.dense(determinants))[0]
    assert 0 <= energy_of(network) - ground < 2e-2


def test_test_compares_the_sample_with_the_exact_sum(tmp_path: Path):
    network = module()
    run = trainer(tmp_path, 1)
    run.test(network, data(), verbose=False)
    metrics = run.callback_metrics
    assert float(metrics["exact/mean"]) == pytest.approx(float(energy_of(network)), abs=1e-6)
    assert abs(float(metrics["test/mean"] - metrics["exact/mean"])) < 5 * float(metrics["test/error_bar"])


def test_a_local_energy_that_is_not_finite_stops_the_run(tmp_path: Path):
    class Broken(ExactLocalEnergy):
        def evaluate(self, *args: Any) -> LocalEnergies:
            energies = super().evaluate(*args)
            energies.values[0] = float("nan")
            return energies

    with pytest.raises(UserError, match="1 local energies are NaN"):
        trainer(tmp_path, 1).fit(module(local_energy=Broken()), data())


def test_metrics_over_one_draw_equal_the_estimate(tmp_path: Path):
    network, source, run = module(), data(), trainer(tmp_path, 1)
    run.fit(network, source)
    batch = source.evaluation_stream().draw(0)
    energies = ExactLocalEnergy().evaluate(network.hamiltonian, network.ansatz, batch)
    metric, estimate = EnergyMetrics(), estimate_energy(energies, batch)
    metric.update(energies, batch)
    result = metric.compute()
    assert float(result["mean"]) == pytest.approx(estimate.mean, abs=1e-12)
    assert float(result["variance"]) == pytest.approx(estimate.variance, rel=1e-9)
    assert float(result["error_bar"]) == pytest.approx(estimate.error, rel=1e-9)


def test_error_bar_shrinks_with_the_number_of_draws(tmp_path: Path):
    network, source, run = module(), data(), trainer(tmp_path, 1)
    run.fit(network, source)
    bars = []
    for draws in (1, 4):
        metric = EnergyMetrics()
        for index in range(draws):
            batch = source.evaluation_stream().draw(index)
            metric.update(ExactLocalEnergy().evaluate(network.hamiltonian, network.ansatz, batch), batch)
        bars.append(float(metric.compute()["error_bar"]))
    assert bars[1] == pytest.approx(bars[0] / 2, rel=0.1)


def test_max_rows_below_one_is_refused_by_key():
    with pytest.raises(UserError, match=r"model\.max_rows is 0"):
        module(max_rows=0)


def test_systems_build_their_own_sector():
    assert module().hamiltonian.sector.size == 36
    assert HubbardChain(n_sites=4, u=2.0).integrals().n_orb == 4
