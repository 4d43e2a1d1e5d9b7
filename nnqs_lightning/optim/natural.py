"""Natural gradients: the step that moves ψ, not the parameters, along the energy gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nnqs_lightning.ansatz.base import Ansatz
from nnqs_lightning.distributed import all_gather_rows, all_reduce_sum
from nnqs_lightning.errors import UserError
from nnqs_lightning.fock import SampleBatch
from nnqs_lightning.optim.base import Direction
from nnqs_lightning.optim.per_sample import AMPLITUDE, PROBE_ROWS, PerSampleScores
from nnqs_lightning.optim.tangent import TangentSpace, tangent_space
from nnqs_lightning.vmc.base import LocalEnergies
from nnqs_lightning.vmc.estimators import EnergyEstimate, estimate_energy, weighted_mean

MAX_DAMPING = 0.1
"""Beyond it the step is that of the plain gradient anyway."""
SHORTEST_STEP = 0.05
"""Share of a step that is made at least."""
SHORTEN, LENGTHEN, RECOVER = 0.25, 2.0, 1.25
"""Bounds on the change of that share from step to step, and its growth where noise hides what was best."""
SIGNIFICANT = 3 * 2**0.5
"""Error bars of one energy by which a fall, the difference of two, must miss its promise to prove anything."""


class MinSR(Direction):
    """Stochastic reconfiguration: δ = Õᵀ (Õ Õᵀ + λ)⁻¹ ε (Chen & Heyl 2024, 2302.01941; complex ψ by stacked parts).

    Õ holds the centred scores times √w, ε_i = √w_i (E_loc,i − E); a step lr is imaginary time in 1/hartree. With
    ``energy_shift`` row i is multiplied and ε_i divided by √(H_DD − E + σ), a diagonal Rayleigh–Gauss–Newton metric
    (Webber & Lindsey 2022, 2106.10558), and lr has no unit. Behind it belongs ``torch.optim.SGD`` without momentum and
    without gradient clipping. Determinants whose weight underflows take no part.

    Args:
        damping: λ added to Õ Õᵀ; it grows by itself where rounding makes the matrix indefinite.
        min_damping: λ halves towards this while the energy falls as predicted, and grows fourfold when it does not
            (Levenberg–Marquardt). Steps shorten to where the parabola through the last two energies is lowest, and
            lengthen again up to lr. Where the energy is noisier than a step, neither follows it. Null: both stay.
        max_change: bound on the Fubini–Study length of a step, lr √(δᵀ S δ); null for none.
        max_norm: bound on the Euclidean length of a step, lr ‖δ‖; null for none.
        energy_shift: σ in hartree: determinants weigh H_DD − E + σ times as much, the diagonal of the energy's Hessian,
            and lr = 1 is about a Newton step; null for the plain Fubini–Study metric.
        max_samples: determinants in the solve; of more, those that matter most and a weighted draw of the others.
        max_bytes: bound on what one pass over the layers holds, in bytes.
    """

    damping: Tensor
    length: Tensor
    """Share of a step that is made, at most one."""
    promise: Tensor
    """Of the last step: the energy before it, its fall to first order, what second order takes off, and the share of
    the step that was made; NaN before the first."""

    def __init__(
        self,
        damping: float = 1e-3,
        min_damping: float | None = None,
        max_change: float | None = 0.1,
        max_norm: float | None = None,
        energy_shift: float | None = None,
        max_samples: int = 4096,
        max_bytes: int = 2**30,
    ) -> None:
        super().__init__()
        positive = {
            "damping": damping,
            "min_damping": min_damping,
            "max_change": max_change,
            "max_norm": max_norm,
            "energy_shift": energy_shift,
        }
        for name, value in positive.items():
            if value is not None and not value > 0:
                raise UserError(f"model.direction.{name} is {value}, expected a positive number")
        if max_samples < 1 or max_bytes < 1:
            raise UserError(
                f"model.direction.max_samples is {max_samples} and max_bytes {max_bytes}, expected positive numbers"
            )
        self.min_damping = min_damping
        self.register_buffer("damping", torch.tensor(damping, dtype=torch.float64))
        self.register_buffer("length", torch.ones((), dtype=torch.float64))
        self.register_buffer("promise", torch.full((4,), torch.nan, dtype=torch.float64))
        self.max_change = max_change
        self.max_norm = max_norm
        self.energy_shift = energy_shift
        self.max_samples = max_samples
        self.max_bytes = max_bytes
        self._scores: PerSampleScores | None = None

    def coefficients(
        self, ansatz: Ansatz, sample: SampleBatch, energies: LocalEnergies, learning_rate: float
    ) -> tuple[Tensor, dict[str, float]]:
        """c_i = r_i x_i − w_i Σ_j r_j x_j, so that Σ Re(c_i* O_i) = Õᵀ x."""
        estimate = estimate_energy(energies, sample)
        self._adapt(estimate)
        chosen, weights = self._select(sample, energies)
        values = energies.values[chosen]
        mean = weighted_mean(weights, values)
        stretch = self._metric(energies, chosen, mean).sqrt()
        scale = weights.sqrt() * stretch
        space = self._tangent_space(ansatz, sample.determinants, chosen, weights, scale)
        target = _as_parts(weights.sqrt() / stretch * (values - mean), space)
        x, promise, stats = self._solve(space, target, stretch, learning_rate)
        self.promise = torch.tensor([estimate.mean, *promise], dtype=torch.float64)
        rows = _as_complex(x, space)
        rows = scale * rows - weights * all_reduce_sum((scale * rows).sum())
        return torch.zeros_like(energies.values).masked_scatter(chosen, rows), stats

    def tangent(self, ansatz: Ansatz) -> dict[str, Tensor] | None:
        """The direction in parameter space that the optimiser adds by itself, by parameter name; None for zero."""
        return None

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        # A strategy may have cast all of the module to the network's precision, in which small falls are lost.
        self.damping, self.length, self.promise = (t.double() for t in (self.damping, self.length, self.promise))
        # Checkpoints from before steps had a length.
        state_dict.setdefault(prefix + "length", torch.ones_like(self.length))
        if state_dict.get(prefix + "promise", self.promise).shape != self.promise.shape:
            state_dict[prefix + "promise"] = torch.full_like(self.promise, torch.nan)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def _adapt(self, estimate: EnergyEstimate) -> None:
        """Damp less after a step that kept its promise, more after one that did not, and set the length of the next."""
        before, first_order, second_order, made = self.promise.tolist()
        promised, fall = first_order - second_order, before - estimate.mean
        if self.min_damping is None or promised != promised:  # NaN before the first
            return
        # A fall within the error bar proves nothing.
        if promised > estimate.error:
            if fall > 0.7 * promised:
                self.damping = (0.5 * self.damping).clamp(min=self.min_damping)
            elif not fall > 0.3 * promised:
                self.damping = (4 * self.damping).clamp(max=MAX_DAMPING)
        change = self._lengthening(first_order, promised, fall, SIGNIFICANT * estimate.error)
        # A step that the other bounds cut short says what is too long, not what is short enough.
        length = change * (made if change < 1 else float(self.length))
        self.length = self.length.new_tensor(min(max(length, SHORTEST_STEP), 1.0), dtype=torch.float64)

    def _lengthening(self, first_order: float, promised: float, fall: float, noise: float) -> float:
        """By which factor the last step should have been longer.

        Couplings between determinants curve the energy more than their diagonal, which is all that the metric knows.
        """
        if abs(fall - promised) <= noise:
            return RECOVER
        best = LENGTHEN if fall >= first_order else first_order / (2 * (first_order - fall))
        # A broken energy, NaN, is not above the smaller bound either.
        return min(max(SHORTEN, best), LENGTHEN)

    def _metric(self, energies: LocalEnergies, chosen: Tensor, mean: Tensor) -> Tensor:
        """Weight of each determinant in the metric over its share of |ψ|²."""
        if self.energy_shift is None:
            return torch.ones_like(energies.weights[chosen])
        if energies.diagonal is None:
            raise UserError("model.local_energy gives no diagonal: set model.direction.energy_shift to null")
        return (energies.diagonal[chosen] - mean.real).clamp(min=0) + self.energy_shift

    def _select(self, sample: SampleBatch, energies: LocalEnergies) -> tuple[Tensor, Tensor]:
        """Mask of the determinants in the solve and their weights, which sum to one over the ranks."""
        live = (energies.weights > 0) & torch.isfinite(torch.view_as_real(energies.values)).all(-1)
        weights = torch.where(live, energies.weights, 0)
        importance = weights * (1 + (energies.values - weighted_mean(weights, energies.values)).abs())
        importance = torch.where(live, importance, 0)
        everyone, offset = all_gather_rows(importance)
        if int((everyone > 0).sum()) > self.max_samples:
            inclusion = inclusion_probabilities(everyone, self.max_samples)
            drawn = systematic_draw(inclusion, seed=sample.step)
            own = slice(offset, offset + len(live))
            live = live & drawn[own]
            weights = weights / inclusion[own].clamp(min=torch.finfo(torch.float64).tiny)
        weights = weights[live]
        return live, weights / all_reduce_sum(weights.sum())

    def _tangent_space(
        self, ansatz: Ansatz, determinants: Tensor, chosen: Tensor, weights: Tensor, scale: Tensor
    ) -> TangentSpace:
        if self._scores is None or self._scores.ansatz is not ansatz:
            probe = all_gather_rows(determinants[:PROBE_ROWS])[0][:PROBE_ROWS]
            self._scores = PerSampleScores(ansatz, probe, self.max_bytes)
        return tangent_space(self._scores, determinants[chosen], weights, scale, self.tangent(ansatz))

    def _solve(
        self, space: TangentSpace, target: Tensor, stretch: Tensor, learning_rate: float
    ) -> tuple[Tensor, tuple[float, float, float], dict[str, float]]:
        """x that moves ψ along s ε with the largest s ≤ :attr:`length` that keeps the bounds, and what it promises.

        The optimiser steps along d = φ + Õᵀ x, φ being :meth:`tangent` (zero here): x solves for s ε − Õ φ, so that
        d regularises towards φ instead of towards zero. All that is bounded is quadratic in s.
        """
        right = torch.stack([target, space.moved])
        solved, shift = space.solve(right, float(self.damping))
        # Õ d = s a + b; without the stretch its length is that of the change in ψ
        a, b = (target - shift * solved[0]) / stretch, shift * solved[1] / stretch
        change = learning_rate**2 * _dots([(a, a), (a, b), (b, b)])
        # ‖d‖² = ‖φ‖² + 2 x·Õφ + x·ÕÕᵀx, with x = s x₀ − x₁ and ÕÕᵀx = s ε − Õφ − λ x
        x0, x1 = solved
        images = right - shift * solved
        norm = learning_rate**2 * _dots(
            [(x0, images[0]), (x0, space.moved - images[1]), (x1, images[1] - 2 * space.moved)]
        )
        norm[2] += learning_rate**2 * _squared_norm(space.tangent)
        s = min(largest_step(change, self.max_change), largest_step(norm, self.max_norm), float(self.length))
        x = s * x0 - x1
        # Fall of the energy along d: 2 lr ε·Õd, less lr² ‖Õd‖² where the metric is the energy's own
        image = s * target - shift * x
        fall, square = _dots([(target, image), (image, image)]).tolist()
        first_order = 2 * learning_rate * fall
        second_order = 0.0 if self.energy_shift is None else learning_rate**2 * square
        stats = {
            "direction/promise": first_order - second_order,
            "direction/change": _quadratic(change, s) ** 0.5,
            "direction/norm": _quadratic(norm, s) ** 0.5,
            "direction/trust": s,
            "direction/damping": shift,
        }
        return x, (first_order, second_order, s), stats


class Spring(MinSR):
    """MinSR that carries on from its last direction (Goldshlager, Abrahamsen & Lin 2024, 2401.10190).

    φ_k = μ φ_{k−1} + Õᵀ (Õ Õᵀ + λ)⁻¹ (ε − μ Õ φ_{k−1}). The coefficients make the second term; the first is the
    momentum of the optimiser behind it, which must be ``torch.optim.SGD`` with ``momentum`` equal to μ, no dampening
    and no gradient clipping: elementwise, and so right under every sharding. The trust region scales ε, not the step:
    what the optimiser remembers is what it did.

    Args:
        momentum: μ; the optimiser's momentum must be the same.
        damping: λ added to Õ Õᵀ; it grows by itself where rounding makes the matrix indefinite.
        min_damping: λ halves towards this while the energy falls as predicted, and grows fourfold when it does not
            (Levenberg–Marquardt; where the energy is noisier than a step, it stays); null keeps λ.
        max_change: bound on the Fubini–Study length of a step, lr √(φᵀ S φ); null for none.
        max_norm: bound on the Euclidean length of a step, lr ‖φ‖; null for none.
        energy_shift: σ in hartree: determinants weigh H_DD − E + σ times as much, the diagonal of the energy's Hessian,
            and lr = 1 is about a Newton step; null for the plain Fubini–Study metric.
        max_samples: determinants in the solve; of more, those that matter most and a weighted draw of the others.
        max_bytes: bound on what one pass over the layers holds, in bytes.
    """

    previous: Tensor

    def __init__(
        self,
        momentum: float = 0.9,
        damping: float = 1e-3,
        min_damping: float | None = None,
        max_change: float | None = 0.1,
        max_norm: float | None = None,
        energy_shift: float | None = None,
        max_samples: int = 4096,
        max_bytes: int = 2**30,
    ) -> None:
        super().__init__(damping, min_damping, max_change, max_norm, energy_shift, max_samples, max_bytes)
        if not 0 <= momentum < 1:
            raise UserError(f"model.direction.momentum is {momentum}, expected 0 ≤ momentum < 1")
        self.momentum = momentum
        self.register_buffer("previous", torch.zeros(0))

    def tangent(self, ansatz: Ansatz) -> dict[str, Tensor] | None:
        """μ φ_{k−1}."""
        if not len(self.previous):
            return None
        named = dict(ansatz.named_parameters())
        sizes = [p.numel() for p in named.values()]
        pieces = (self.momentum * self.previous).split(sizes)
        return {name: piece.view(p.shape) for (name, p), piece in zip(named.items(), pieces, strict=True)}

    def observe_gradient(self, gradients: list[Tensor]) -> None:
        """φ_k = μ φ_{k−1} + gradient, as SGD does it."""
        flat = torch.cat([g.detach().flatten() for g in gradients])
        self.previous = flat if not len(self.previous) else self.momentum * self.previous + flat

    def _lengthening(self, first_order: float, promised: float, fall: float, noise: float) -> float:
        """None: s scales ε alone, and what is remembered of earlier steps would overshoot all the same."""
        return LENGTHEN

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        self.previous = torch.zeros_like(state_dict.get(prefix + "previous", self.previous))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def inclusion_probabilities(importance: Tensor, expected: int) -> Tensor:
    """π_i = min(1, κ importance_i) with Σ π = ``expected``; fewer rows than that are all certain."""
    certain = importance > 0
    if int(certain.sum()) <= expected:
        return certain.to(importance.dtype)
    ordered, _ = importance.sort(descending=True)
    tail = ordered.flip(0).cumsum(0).flip(0)
    # With the first m certain, κ = (expected − m) / tail_m; the right m is the first whose κ ordered_m is below one.
    m = torch.arange(expected, device=importance.device)
    rates = (expected - m) / tail[:expected]
    fits = (rates * ordered[:expected] < 1).nonzero()
    first = int(fits[0]) if len(fits) else expected - 1
    return (rates[first] * importance).clamp(max=1)


def systematic_draw(inclusion: Tensor, seed: int) -> Tensor:
    """Mask that holds each row with its probability, Σ π rows in all; the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    start = torch.rand((), dtype=torch.float64, generator=generator).to(inclusion.device)
    ticks = torch.floor(inclusion.cumsum(0) + start)
    return torch.diff(ticks, prepend=torch.floor(start)[None]) > 0


def largest_step(quadratic: Tensor, bound: float | None) -> float:
    """Largest s in [0, 1] with A s² + 2 B s + C ≤ bound² for (A, B, C); where there is none, the s nearest to it."""
    if bound is None:
        return 1.0
    a, b, c = quadratic.tolist()
    if a + 2 * b + c <= bound**2:
        return 1.0
    discriminant = b**2 - a * (c - bound**2)
    if a <= 0:
        return 0.0
    s = (-b + max(discriminant, 0.0) ** 0.5) / a
    return min(max(s, 0.0), 1.0)


def _quadratic(quadratic: Tensor, s: float) -> float:
    a, b, c = quadratic.tolist()
    return max(a * s**2 + 2 * b * s + c, 0.0)


def _dots(pairs: list[tuple[Tensor, Tensor]]) -> Tensor:
    return all_reduce_sum(torch.stack([(left * right).sum() for left, right in pairs]))


def _squared_norm(tangent: Any) -> float:
    return 0.0 if tangent is None else sum(float(t.double().square().sum()) for t in tangent.values())


def _as_parts(values: Tensor, space: TangentSpace) -> Tensor:
    """Complex [n] → the real rows of the parts present, [k, n]."""
    return torch.stack([values.real if part == AMPLITUDE else values.imag for part in space.scores.parts])


def _as_complex(rows: Tensor, space: TangentSpace) -> Tensor:
    """Inverse of :func:`_as_parts`, zero for an absent part."""
    both = rows.new_zeros((2, rows.shape[1]))
    both[list(space.scores.parts)] = rows
    return torch.complex(both[0], both[1])
