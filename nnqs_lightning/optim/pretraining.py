"""A supervised start: the wave function is fitted to a cheap state by a natural gradient."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from nnqs_lightning.ansatz.base import Ansatz
from nnqs_lightning.distributed import all_reduce_sum, rank, world_size
from nnqs_lightning.errors import UserError
from nnqs_lightning.hamiltonian import MolecularHamiltonian
from nnqs_lightning.optim.base import Direction
from nnqs_lightning.optim.per_sample import AMPLITUDE, PerSampleScores
from nnqs_lightning.optim.tangent import TangentSpace, tangent_space
from nnqs_lightning.vmc.pretrain import CISD, StateVector, TargetState

EASIER, HARDER = 0.25, 4.0
"""Factors of the damping after a step that helped and after one that did not."""


@dataclass(frozen=True)
class _Fit:
    """Rows of this rank: what is to be met, and with which weight."""

    determinants: Tensor
    log_target: Tensor
    metric: Tensor

    def weights(self, misfit: Tensor) -> Tensor:
        """q: the mean of |c|² and |ψ|² times the metric, so that too much counts like too little."""
        target = torch.exp(2 * self.log_target.real)
        return 0.5 * (target + torch.exp(2 * (self.log_target - misfit).real)) * self.metric

    def misfit(self, log_psi: Tensor) -> Tensor:
        """log of target over ψ, complex128 [n]: phases modulo 2π and up to a common one."""
        ratio = self.log_target - log_psi
        weights = torch.exp(2 * self.log_target.real)
        common = all_reduce_sum((weights * torch.polar(torch.ones_like(ratio.real), ratio.imag)).sum())
        angles = torch.polar(torch.ones_like(ratio.real), ratio.imag - common.angle()).angle()
        return torch.complex(ratio.real, angles)

    @staticmethod
    def loss(weights: Tensor, misfit: Tensor) -> float:
        """Σ q |misfit|² over all ranks; infinite for a broken ψ."""
        total = float(all_reduce_sum((weights * misfit.abs().square()).sum()))
        return total if total == total else float("inf")


class Pretraining:
    """Fit log |ψ| and the phase to a target, by Levenberg–Marquardt steps in the space of samples.

    Minimises Σ_D q_D |log c_D − log ψ_D|² with q_D the mean of |c_D|² and the present |ψ_D|², times H_DD − E + σ. ψ
    being normalised over its sector, meeting the target's amplitudes leaves nothing elsewhere. Deterministic, and the
    same on any number of ranks.

    Args:
        target: state to fit.
        steps: largest number of steps.
        tolerance: stop when Σ q |log c − log ψ|² falls below.
        threshold: determinants with |c| below are left out.
        energy_shift: σ in hartree, so that what costs energy is met best; null for no such factor.
        damping: first damping of the normal equations; it falls with every step that helps.
        max_bytes: bound on what one pass over the layers holds, in bytes.
    """

    def __init__(
        self,
        target: TargetState | None = None,
        steps: int = 20,
        tolerance: float = 1e-7,
        threshold: float = 1e-6,
        energy_shift: float | None = 1.0,
        damping: float = 1e-2,
        max_bytes: int = 2**30,
    ) -> None:
        if steps < 0 or damping <= 0 or (energy_shift is not None and energy_shift <= 0):
            raise UserError(
                f"pretraining: steps is {steps}, damping {damping} and energy_shift {energy_shift}, "
                "expected steps ≥ 0 and positive numbers"
            )
        self.target = target or CISD()
        self.steps = steps
        self.tolerance = tolerance
        self.threshold = threshold
        self.energy_shift = energy_shift
        self.damping = damping
        self.max_bytes = max_bytes

    def run(self, ansatz: Ansatz, hamiltonian: MolecularHamiltonian) -> Iterator[dict[str, float]]:
        """Change the parameters of ``ansatz`` step by step; collective: every rank calls it with equal parameters.

        Yields:
            ``pretrain/step``, ``pretrain/infidelity`` 1 − |⟨target|ψ⟩|², ``pretrain/misfit`` (the loss) and
            ``pretrain/damping`` after each step.

        Raises:
            UserError: ψ vanishes on most of the target, as in another irrep.
        """
        state = self.target.vector(hamiltonian)
        fit = self._fit(ansatz, hamiltonian, state)
        scores = PerSampleScores(ansatz, state.determinants.to(fit.metric.device), self.max_bytes)
        damping = self.damping
        misfit = self._misfit(ansatz, fit)
        for step in range(self.steps):
            weights = fit.weights(misfit)
            loss = fit.loss(weights, misfit)
            if loss < self.tolerance:
                break
            root = weights.sqrt()
            space = tangent_space(scores, fit.determinants, torch.zeros_like(root), root)
            start = [p.detach().clone() for p in scores.parameters.values()]
            while True:
                self._move(ansatz, space, fit.determinants, misfit, damping)
                trial = self._misfit(ansatz, fit)
                trial_loss = fit.loss(weights, trial)
                if trial_loss < loss or damping > 1e6:
                    break
                _restore(scores, start)
                damping *= HARDER
            if trial_loss >= loss:
                _restore(scores, start)
                break
            misfit, damping = trial, damping * EASIER
            infidelity = 1 - self._fidelity(fit, misfit)
            yield {
                "pretrain/step": float(step),
                "pretrain/infidelity": infidelity,
                "pretrain/misfit": trial_loss,
                "pretrain/damping": damping,
            }

    def _fit(self, ansatz: Ansatz, hamiltonian: MolecularHamiltonian, state: StateVector) -> _Fit:
        """This rank's share of the target's determinants, as far as ψ can reach them."""
        device = next(ansatz.parameters()).device
        determinants = state.determinants.to(device)
        with torch.no_grad():
            reachable = torch.isfinite(torch.cat([ansatz(rows).real for rows in determinants.split(4096)]))
        magnitude = state.coefficients.abs().to(device)
        chosen = reachable & (magnitude > self.threshold)
        norm = magnitude[chosen].square().sum()
        if norm < 0.5:
            raise UserError(
                f"ψ vanishes on {100 * (1 - float(norm)):.0f} % of the pretraining target: its determinants lie in "
                "another irrep. Set model.ansatz.point_group to false or change pretraining.target"
            )
        coefficients = state.coefficients.to(device)[chosen] / norm.sqrt()
        metric = torch.ones_like(coefficients.real)
        if self.energy_shift is not None:
            metric = (hamiltonian.diagonal(determinants[chosen]) - state.energy).clamp(min=0) + self.energy_shift
        own = slice(rank(), None, world_size())
        return _Fit(determinants[chosen][own], torch.log(coefficients)[own], metric[own])

    @staticmethod
    def _misfit(ansatz: Ansatz, fit: _Fit) -> Tensor:
        with torch.no_grad():
            return fit.misfit(ansatz(fit.determinants))

    @staticmethod
    def _fidelity(fit: _Fit, misfit: Tensor) -> float:
        """|⟨target|ψ⟩|², ψ being normalised."""
        overlap = all_reduce_sum((torch.exp(2 * fit.log_target.real) * torch.exp(-misfit)).sum())
        return float(overlap.abs().square())

    @staticmethod
    def _move(ansatz: Ansatz, space: TangentSpace, determinants: Tensor, misfit: Tensor, damping: float) -> None:
        """θ += Õᵀ (Õ Õᵀ + λ)⁻¹ √q misfit, by one backward pass over the rows of this rank."""
        root, parts = space.row_scale, space.scores.parts
        target = root * torch.stack([misfit.real if part == AMPLITUDE else misfit.imag for part in parts])
        solved, _ = space.solve(target[None], damping)
        both = root.new_zeros((2, len(root)))
        both[list(parts)] = root * solved[0]
        coefficients = torch.complex(both[0], both[1])
        parameters = list(space.scores.parameters.values())
        surrogate = Direction.surrogate(coefficients, ansatz(determinants))
        gradients = torch.autograd.grad(surrogate, parameters, materialize_grads=True)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.add_(all_reduce_sum(gradient))


def _restore(scores: PerSampleScores, values: list[Tensor]) -> None:
    with torch.no_grad():
        for parameter, value in zip(scores.parameters.values(), values, strict=True):
            parameter.copy_(value)
