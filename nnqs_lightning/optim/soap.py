"""SOAP: Adam in the eigenbasis of Shampoo's preconditioner."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class SOAP(Optimizer):
    """Adam on gradients rotated into the eigenbases of the averaged G Gᵀ and Gᵀ G (Vyas et al. 2024, 2409.11321).

    Parameters that are no matrices, or sides longer than ``max_side``, are not rotated: there it is Adam with decoupled
    weight decay. It needs whole matrices: use it without sharding (DDP, ZeRO stage 0).

    Args:
        params: parameters of the network.
        lr: learning rate.
        betas: averaging of the gradient and of its square.
        shampoo_beta: averaging of G Gᵀ and Gᵀ G.
        eps: added to the root mean square.
        weight_decay: decoupled.
        frequency: steps between updates of the eigenbases.
        max_side: longest side of a matrix that gets a basis.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 3e-3,
        betas: tuple[float, float] = (0.95, 0.95),
        shampoo_beta: float = 0.95,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        frequency: int = 10,
        max_side: int = 1024,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "shampoo_beta": shampoo_beta,
            "eps": eps,
            "weight_decay": weight_decay,
            "frequency": frequency,
            "max_side": max_side,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)
        return loss

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = 0
            state["mean"] = torch.zeros_like(gradient)
            state["square"] = torch.zeros_like(gradient)
            state["sides"] = _sides(gradient, group["max_side"])
            for side in state["sides"]:
                _average(side, gradient, 0.0)
                side["basis"] = torch.linalg.eigh(side["covariance"])[1]
        state["step"] += 1
        first, second = group["betas"]
        state["mean"].lerp_(gradient, 1 - first)
        rotated = _rotate(gradient, state["sides"])
        state["square"].mul_(second).addcmul_(rotated, rotated, value=1 - second)
        mean = _rotate(state["mean"], state["sides"]) / (1 - first ** state["step"])
        scale = (state["square"] / (1 - second ** state["step"])).sqrt() + group["eps"]
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.sub_(group["lr"] * _rotate(mean / scale, state["sides"], back=True))
        for side in state["sides"]:
            _average(side, gradient, group["shampoo_beta"])
            if state["step"] % group["frequency"] == 0:
                # One round of subspace iteration follows the slow drift of the eigenvectors.
                side["basis"] = torch.linalg.qr(side["covariance"] @ side["basis"])[0]


def _sides(gradient: Tensor, max_side: int) -> list[dict[str, Any]]:
    """One entry for each side of a matrix that gets a basis."""
    if gradient.ndim != 2:
        return []
    return [{"axis": axis} for axis in (0, 1) if 1 < gradient.shape[axis] <= max_side]


def _average(side: dict[str, Any], gradient: Tensor, beta: float) -> None:
    outer = gradient @ gradient.t() if side["axis"] == 0 else gradient.t() @ gradient
    side["covariance"] = outer if beta == 0 else side["covariance"].lerp(outer, 1 - beta)


def _rotate(matrix: Tensor, sides: list[dict[str, Any]], back: bool = False) -> Tensor:
    """Into the eigenbases, or back."""
    for side in sides:
        basis = side["basis"] if back else side["basis"].t()
        matrix = basis @ matrix if side["axis"] == 0 else matrix @ basis.t()
    return matrix
