"""Parameters and gradients in one piece, whatever a strategy has sharded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch.strategies import Strategy
from torch import Tensor, nn


def gather_parameters(strategy: Strategy) -> None:
    """Make parameters whole on every rank until the next training step; collective, outside ``torch.no_grad``.

    A sampler calls it before it walks: ranks that make different numbers of forward passes would otherwise wait for
    one another for ever at ZeRO stage 3. Does nothing where parameters are whole already.
    """
    gather = getattr(strategy, "gather_parameters", None)
    if gather is not None:
        gather()


def full_gradients(strategy: Strategy, parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    """Gradient of each parameter between the backward pass and the step, averaged over ranks; collective.

    A parameter that took no part has a gradient of zeros.
    """
    if hasattr(strategy, "gather_parameters"):
        from deepspeed.utils import safe_get_full_grad

        gradients = [(p, safe_get_full_grad(p)) for p in parameters]
    else:
        gradients = [(p, p.grad) for p in parameters]
    return [torch.zeros(shape(p), device=p.device) if gradient is None else gradient for p, gradient in gradients]


def shape(parameter: nn.Parameter) -> torch.Size:
    """Shape of the whole parameter, also where this rank holds a part of it."""
    return getattr(parameter, "ds_shape", parameter.shape)


@contextmanager
def unsharded(engine: Any) -> Iterator[None]:
    """Whole parameters of a ZeRO-3 engine, its hooks off, so that each rank may call the module any number of times.

    A plain ``GatheredParameters`` is not enough: the hooks shard a parameter again after the first forward pass.
    Enter on all ranks and outside the engine's forward pass; parameters may be read, not written.
    """
    from deepspeed.runtime.zero import GatheredParameters

    # Training wraps the hooks into an optimiser, inference hands them over bare.
    hooks = getattr(engine.optimizer, "parameter_offload", engine.optimizer)
    parameters = list(hooks.module.parameters())
    for parameter in parameters:
        parameter.ds_active_sub_modules.clear()
    with GatheredParameters(parameters):
        for hook in (*hooks.forward_hooks, *hooks.backward_hooks):
            hook.remove()
        hooks.forward_hooks, hooks.backward_hooks = [], []
        try:
            yield
        finally:
            hooks._register_deepspeed_module(hooks.module)
