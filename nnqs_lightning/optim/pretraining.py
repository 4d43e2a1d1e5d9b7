"""A supervised start: the wave function is fitted to a cheap state by a natural gradient."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from nnqs_lightning.ansatz.base import Ansatz
from nnqs_lightning.distributed import all_gather_rows, all_reduce_sum, rank, world_size
from nnqs_lightning.errors import UserError
from nnqs_lightning.hamiltonian import MolecularHamiltonian
from nnqs_lightning.optim.base import Direction
from nnqs_lightning.optim.per_sample import AMPLITUDE, PerSampleScores
from nnqs_lightning.optim.tangent import TangentSpace, tangent_space
from nnqs_lightning.vmc.pretrain import CISD, StateVector, TargetState

EASIER, HARDER = 0.25, 4.0
"""Factors of the damping after a step that helped and after one that did not."""
PATIENCE, PROGRESS = 6, 0.8
"""A stage ends when the misfit has not fallen by that factor within so many steps."""
MAX_DAMPING = 1e6
FIRST_STAGE, STAGE_GROWTH = 128, 4
"""Determinants of the first stage, and the factor from stage to stage."""
FEWEST_ROWS = 64
"""Rows of a step, if there are so many."""
ROWS_AT_ONCE = 8192
SMALLEST_LEAK = 1e-7
"""What float32 resolves of a norm."""


@dataclass(frozen=True)
class _Fit:
    """Rows of this rank, largest |c| first: what is to be met, and with which weight."""

    determinants: Tensor
    log_target: Tensor
    metric: Tensor
    leak_metric: float
    """Metric of all other determinants."""
    rest: float
    """Share of |ψ|² that they may have."""

    def leading(self, size: int) -> _Fit:
        """The ``size`` largest amplitudes over all ranks."""
        own = len(range(rank(), size, world_size()))
        log_target = self.log_target[:own]
        held = all_reduce_sum(torch.exp(2 * log_target.real).sum())
        rest = max(1 - float(held), self.rest)
        return _Fit(self.determinants[:own], log_target, self.metric[:own], self.leak_metric, rest)

    def weights(self, misfit: Tensor) -> Tensor:
        """q: the mean of |c|² and |ψ|² times the metric, so that too much counts like too little."""
        target = torch.exp(2 * self.log_target.real)
        return 0.5 * (target + self.density(misfit)) * self.metric

    def density(self, misfit: Tensor) -> Tensor:
        """|ψ|² of each row."""
        return torch.exp(2 * (self.log_target - misfit).real)

    def misfit(self, log_psi: Tensor) -> Tensor:
        """log of target over ψ, complex128 [n]: phases modulo 2π and up to a common one."""
        ratio = self.log_target - log_psi
        weights = torch.exp(2 * self.log_target.real)
        common = all_reduce_sum((weights * torch.polar(torch.ones_like(ratio.real), ratio.imag)).sum())
        angles = torch.polar(torch.ones_like(ratio.real), ratio.imag - common.angle()).angle()
        return torch.complex(ratio.real, angles)

    def leak(self, misfit: Tensor) -> float:
        """Share of |ψ|² on other determinants, ψ being normalised over its sector."""
        return max(1 - float(all_reduce_sum(self.density(misfit).sum())), 0.0)

    def loss(self, weights: Tensor, misfit: Tensor) -> float:
        """Σ q |misfit|² over all ranks and what leaks; infinite for a broken ψ."""
        total = float(all_reduce_sum((weights * misfit.abs().square()).sum()))
        total += self.leak_metric * max(self.leak(misfit) - self.rest, 0.0)
        return total if total == total else float("inf")


class Pretraining:
    """Fit log |ψ| and the phase to a target, by Levenberg–Marquardt steps in the space of samples.

    Minimises Σ_D q_D |log c_D − log ψ_D|² with q_D the mean of |c_D|² and the present |ψ_D|², times H_DD − E + σ: about
    the energy in hartree that the misfit costs. A small misfit may still leave much of ψ outside of the target (to
    first order no amplitude inside tells), so what leaks joins the sum as one more row: its score follows from those
    inside, ψ being normalised over its sector. Deterministic, and the same on any number of ranks.

    The largest amplitudes come first, stage by stage four times as many. A step asks no determinant to change its log ψ
    by more than ``max_change``, since the linear model ends there, and solves for those alone that matter: its cost
    grows with their square.

    Args:
        target: state to fit.
        steps: largest number of steps.
        tolerance: stop when Σ q |log c − log ψ|² falls below; in hartree, with ``energy_shift``.
        threshold: determinants with |c| below are left out.
        energy_shift: σ in hartree, so that what costs energy is met best; null for no such factor.
        max_change: bound on the change of log ψ that a step asks of a determinant.
        left_out: a step leaves out determinants with Σ q (1 + |log c − log ψ|²) up to this share of the misfit.
        max_samples: bound on the determinants in a step; of more, those with the largest q (1 + |log c − log ψ|²).
        damping: first damping of the normal equations; it falls with every step that helps.
        max_bytes: bound on what one pass over the layers holds, in bytes.
    """

    def __init__(
        self,
        target: TargetState | None = None,
        steps: int = 100,
        tolerance: float = 3e-4,
        threshold: float = 1e-6,
        energy_shift: float | None = 1.0,
        max_change: float = 1.0,
        left_out: float = 0.01,
        max_samples: int = 2048,
        damping: float = 1e-2,
        max_bytes: int = 2**30,
    ) -> None:
        if steps < 0 or damping <= 0 or max_change <= 0 or (energy_shift is not None and energy_shift <= 0):
            raise UserError(
                f"pretraining: steps is {steps}, damping {damping}, max_change {max_change} and energy_shift "
                f"{energy_shift}, expected steps ≥ 0 and positive numbers"
            )
        if not 0 <= left_out < 1 or max_samples < 1:
            raise UserError(
                f"pretraining: left_out is {left_out} and max_samples {max_samples}, expected 0 ≤ left_out < 1 and at "
                "least 1"
            )
        self.target = target or CISD()
        self.steps = steps
        self.tolerance = tolerance
        self.threshold = threshold
        self.energy_shift = energy_shift
        self.max_change = max_change
        self.left_out = left_out
        self.max_samples = max_samples
        self.damping = damping
        self.max_bytes = max_bytes

    def run(self, ansatz: Ansatz, hamiltonian: MolecularHamiltonian) -> Iterator[dict[str, float]]:
        """Change the parameters of ``ansatz`` step by step; collective: every rank calls it with equal parameters.

        Yields:
            ``pretrain/step``, ``pretrain/infidelity`` 1 − |⟨target|ψ⟩|², ``pretrain/misfit`` (the loss),
            ``pretrain/damping`` and ``pretrain/rows`` (determinants in the solve) after each step.

        Raises:
            UserError: ψ vanishes on most of the target, as in another irrep.
        """
        state = self.target.vector(hamiltonian)
        whole = self._fit(ansatz, hamiltonian, state)
        count = int(all_reduce_sum(torch.tensor(len(whole.determinants), device=whole.metric.device)))
        scores = PerSampleScores(ansatz, state.determinants.to(whole.metric.device), self.max_bytes)
        size, step = min(FIRST_STAGE, count), 0
        while True:
            for figures in self._stage(ansatz, scores, whole.leading(size) if size < count else whole, step):
                step += 1
                yield {"pretrain/step": float(step), **figures}
            if size == count:
                return
            size = min(STAGE_GROWTH * size, count)

    def _stage(self, ansatz: Ansatz, scores: PerSampleScores, fit: _Fit, first: int) -> Iterator[dict[str, float]]:
        """Steps towards one set of amplitudes, until they are met or progress ends."""
        tolerance = max(self.tolerance, fit.leak_metric * fit.rest)
        damping, misfit = self.damping, self._misfit(ansatz, fit)
        best, best_step = float("inf"), first
        for step in range(first, self.steps):
            weights = fit.weights(misfit)
            loss = fit.loss(weights, misfit)
            if loss < PROGRESS * best:
                best, best_step = loss, step
            if loss < tolerance or step - best_step > PATIENCE:
                return
            rows = self._rows(weights, misfit, loss)
            root = weights[rows].sqrt()
            space = tangent_space(scores, fit.determinants[rows], torch.zeros_like(root), root)
            wanted, leak_row = self._wanted(fit, misfit, rows, space)
            start = [p.detach().clone() for p in scores.parameters.values()]
            while True:
                self._move(ansatz, space, wanted, leak_row, damping)
                trial = self._misfit(ansatz, fit)
                trial_loss = fit.loss(weights, trial)
                if trial_loss < loss:
                    break
                _restore(scores, start)
                if damping > MAX_DAMPING:
                    return
                damping *= HARDER
            misfit, damping = trial, damping * EASIER
            yield {
                "pretrain/infidelity": 1 - self._fidelity(fit, misfit),
                "pretrain/misfit": trial_loss,
                "pretrain/damping": damping,
                "pretrain/rows": float(all_reduce_sum(rows.sum())),
            }

    def _fit(self, ansatz: Ansatz, hamiltonian: MolecularHamiltonian, state: StateVector) -> _Fit:
        """This rank's share of the target's determinants, as far as ψ can reach them."""
        device = next(ansatz.parameters()).device
        determinants = state.determinants.to(device)
        reachable = torch.isfinite(ansatz.evaluate(determinants, ROWS_AT_ONCE).real)
        magnitude = state.coefficients.abs().to(device)
        chosen = reachable & (magnitude > self.threshold)
        norm = magnitude[chosen].square().sum()
        if norm < 0.5:
            raise UserError(
                f"ψ vanishes on {100 * (1 - float(norm)):.0f} % of the pretraining target: its determinants lie in "
                "another irrep. Change model.system.wfn_sym or pretraining.target, or set model.ansatz.point_group to "
                "false"
            )
        coefficients = state.coefficients.to(device)[chosen] / norm.sqrt()
        metric = torch.ones_like(coefficients.real)
        if self.energy_shift is not None:
            metric = (hamiltonian.diagonal(determinants[chosen]) - state.energy).clamp(min=0) + self.energy_shift
        order = coefficients.abs().argsort(descending=True, stable=True)[rank() :: world_size()]
        leak_metric = float(metric.mean())  # over the whole target, so that it is the same on every rank
        # Where the target knows nothing, what costs less than the tolerance is left to the optimisation.
        rest = self.tolerance / leak_metric
        return _Fit(determinants[chosen][order], torch.log(coefficients[order]), metric[order], leak_metric, rest)

    def _rows(self, weights: Tensor, misfit: Tensor, loss: float) -> Tensor:
        """Mask of this rank's determinants that take part in a step."""
        importance = weights * (1 + misfit.abs().square())
        everyone = all_gather_rows(importance)[0].sort().values
        n_left_out = int((everyone.cumsum(0) < self.left_out * min(loss, 1.0)).sum())
        fewest, most = len(everyone) - self.max_samples, len(everyone) - FEWEST_ROWS
        return importance >= everyone[max(min(max(n_left_out, fewest), most), 0)]

    def _wanted(
        self, fit: _Fit, misfit: Tensor, rows: Tensor, space: TangentSpace
    ) -> tuple[Tensor, tuple[Tensor, float]]:
        """√q misfit [k, n], bounded, and the row of what leaks: a with Õ_leak = Σ_D a_D Õ_D, and its √q misfit.

        log ψ_leak = ½ log(1 − Σ_D |ψ_D|²) has the score −Σ_D |ψ_D|² O_D / leak; it is asked to fall to the target's.
        """
        root, parts = space.row_scale, space.scores.parts
        bounded = misfit[rows] * (self.max_change / misfit[rows].abs().clamp(min=self.max_change))
        wanted = root * torch.stack([bounded.real if part == AMPLITUDE else bounded.imag for part in parts])
        combination = torch.zeros_like(wanted)
        leak = fit.leak(misfit)
        if leak < fit.rest + SMALLEST_LEAK or AMPLITUDE not in parts:
            return wanted, (combination, 0.0)
        scale = (fit.leak_metric * leak) ** 0.5
        combination[parts.index(AMPLITUDE)] = -scale * fit.density(misfit)[rows] / (leak * root)
        fall = 0.5 * math.log(leak / max(fit.rest, SMALLEST_LEAK))
        return wanted, (combination, -scale * min(fall, self.max_change))

    @staticmethod
    def _misfit(ansatz: Ansatz, fit: _Fit) -> Tensor:
        return fit.misfit(ansatz.evaluate(fit.determinants, ROWS_AT_ONCE))

    @staticmethod
    def _fidelity(fit: _Fit, misfit: Tensor) -> float:
        """|⟨target|ψ⟩|², ψ being normalised."""
        overlap = all_reduce_sum((torch.exp(2 * fit.log_target.real) * torch.exp(-misfit)).sum())
        return float(overlap.abs().square())

    @staticmethod
    def _move(
        ansatz: Ansatz, space: TangentSpace, wanted: Tensor, leak_row: tuple[Tensor, float], damping: float
    ) -> None:
        """θ += the damped least-squares step, by one backward pass over the rows of this rank."""
        root = space.row_scale
        both = root.new_zeros((2, len(root)))
        both[list(space.scores.parts)] = root * _least_squares(space, wanted, *leak_row, damping)
        coefficients = torch.complex(both[0], both[1])
        parameters = list(space.scores.parameters.values())
        surrogate = Direction.surrogate(coefficients, ansatz(space.determinants))
        gradients = torch.autograd.grad(surrogate, parameters, materialize_grads=True)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.add_(all_reduce_sum(gradient))


def _least_squares(space: TangentSpace, wanted: Tensor, row: Tensor, wanted_row: float, damping: float) -> Tensor:
    """x such that δ = Õᵀ x minimises ‖wanted − Õ δ‖² + (wanted_row − row·Õ δ)² + λ ‖δ‖².

    With B = 1 + row rowᵀ that is (Õ Õᵀ + λ B⁻¹) x = B⁻¹ (wanted + wanted_row row), and B⁻¹ differs from 1 by a matrix
    of rank one (Sherman & Morrison 1950).
    """

    def dot(left: Tensor, right: Tensor) -> float:
        return float(all_reduce_sum((left * right).sum()))

    norm = 1 + dot(row, row)
    right = wanted + row * ((wanted_row - dot(row, wanted)) / norm)
    (x, y), shift = space.solve(torch.stack([right, row]), damping)
    share = shift / norm
    return x + y * (share * dot(row, x) / (1 - share * dot(row, y)))


def _restore(scores: PerSampleScores, values: list[Tensor]) -> None:
    with torch.no_grad():
        for parameter, value in zip(scores.parameters.values(), values, strict=True):
            parameter.copy_(value)
