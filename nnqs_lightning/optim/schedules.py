"""Learning-rate schedules with a warm-up, advanced once a step."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from nnqs_lightning.errors import UserError


class Schedule(LRScheduler):
    """The optimiser's lr times a factor of the step count."""

    @abstractmethod
    def factor(self, step: int) -> float:
        """Factor of step 0, 1, 2, …"""

    def get_lr(self) -> list[Any]:
        """The learning rate of each parameter group, in closed form: nothing accumulates."""
        return [base * self.factor(self.last_epoch) for base in self.base_lrs]


class WarmupCosine(Schedule):
    """Linear rise to lr, then a half cosine down to ``final`` · lr (Loshchilov & Hutter 2017, 1608.03983).

    Args:
        optimizer: filled in by the trainer.
        total_steps: step at which the cosine ends; later steps stay there.
        warmup_steps: steps of the rise.
        final: share of lr at the end.
        last_epoch: step to resume from.
    """

    def __init__(
        self, optimizer: Optimizer, total_steps: int, warmup_steps: int = 0, final: float = 0.0, last_epoch: int = -1
    ) -> None:
        if not 0 <= warmup_steps < total_steps:
            raise UserError(
                f"warmup_steps is {warmup_steps} and total_steps {total_steps}, expected 0 ≤ warmup_steps < "
                "total_steps: change model.lr_scheduler"
            )
        self.total_steps = total_steps
        self.warmup_steps = warmup_steps
        self.final = final
        super().__init__(optimizer, last_epoch)

    def factor(self, step: int) -> float:
        """See :class:`Schedule`."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        progress = min((step - self.warmup_steps) / (self.total_steps - self.warmup_steps), 1.0)
        return self.final + (1 - self.final) * 0.5 * (1 + math.cos(math.pi * progress))


class InverseSqrt(Schedule):
    """Linear rise to lr, then lr √(warmup_steps / step).

    With lr = d_model^−½ warmup_steps^−½ it is the schedule of Vaswani et al. 2017 (1706.03762, eq. 3), called Noam.

    Args:
        optimizer: filled in by the trainer.
        warmup_steps: steps of the rise.
        last_epoch: step to resume from.
    """

    def __init__(self, optimizer: Optimizer, warmup_steps: int = 100, last_epoch: int = -1) -> None:
        if warmup_steps < 1:
            raise UserError(f"warmup_steps is {warmup_steps}, expected at least 1: change model.lr_scheduler")
        self.warmup_steps = warmup_steps
        super().__init__(optimizer, last_epoch)

    def factor(self, step: int) -> float:
        """See :class:`Schedule`."""
        count = step + 1
        return min(count / self.warmup_steps, math.sqrt(self.warmup_steps / count))
