"""Muon for the matrices of a network, AdamW for everything else, as one optimiser."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

from nnqs_lightning.errors import UserError


class Muon(Optimizer):
    """Orthogonalised momentum for 2-D parameters (Jordan et al. 2024), AdamW for the others.

    Both are PyTorch's own. Matrix updates are scaled to the root mean square of AdamW's, so that one lr serves both.
    It needs whole matrices: use it without sharding (DDP, ZeRO stage 0).

    Args:
        params: parameters of the network.
        lr: learning rate.
        momentum: of the matrices.
        betas: AdamW's, of the rest.
        weight_decay: decoupled, of all.

    Raises:
        UserError: this PyTorch has no Muon.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 1e-3,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
    ) -> None:
        if not hasattr(torch.optim, "Muon"):
            raise UserError(f"PyTorch {torch.__version__} has no Muon, expected 2.9 or later: change model.optimizer")
        every = list(params)
        matrices, rest = [p for p in every if p.ndim == 2], [p for p in every if p.ndim != 2]
        super().__init__([{"params": group} for group in (matrices, rest) if group], {"lr": lr})
        groups = iter(self.param_groups)
        self._rules: list[Optimizer] = []
        if matrices:
            group = [next(groups)]
            muon = torch.optim.Muon(group, lr, weight_decay, momentum, adjust_lr_fn="match_rms_adamw")
            self._rules.append(muon)
        if rest:
            self._rules.append(AdamW([next(groups)], lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of each rule on its own group; groups and state are this optimiser's, as checkpoints know them."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for rule, group in zip(self._rules, self.param_groups, strict=True):
            rule.param_groups, rule.state = [group], self.state
            rule.step()
        return loss
