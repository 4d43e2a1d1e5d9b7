"""A whole checkpoint into the shards of a DeepSpeed engine, whatever wrote it and on however many ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from nnqs_lightning.errors import UserError


def restore_weights(engine: Any, weights: dict[str, Tensor], strict: bool) -> None:
    """Load a whole state dict into the engine's module; collective."""
    from deepspeed.runtime.zero import GatheredParameters

    module = engine.module
    sharded = [p for p in module.parameters() if hasattr(p, "ds_id")]
    with GatheredParameters(sharded, modifier_rank=0, enabled=bool(sharded)):
        module.load_state_dict(weights, strict=strict)


def restore_optimizer(engine: Any, weights: dict[str, Tensor], state: dict[str, Any]) -> None:
    """Load fp32 masters and a whole optimiser state into the engine's shards.

    Args:
        engine: a training engine before its first step.
        weights: whole state dict, float32.
        state: ``state_dict`` of the same optimiser without shards.

    Raises:
        UserError: if the optimiser of the checkpoint has other parameters than the engine's.
    """
    optimizer = engine.optimizer
    if engine.zero_optimization_stage() == 0:
        if hasattr(optimizer, "refresh_fp32_params"):
            raise UserError(
                "trainer.strategy.init_args.stage is 0, which takes up half-precision runs on the same number of ranks "
                "only: set it to 1"
            )
        optimizer.load_state_dict(state)
        return
    names = {id(parameter): name for name, parameter in engine.module.named_parameters()}
    base = optimizer.optimizer
    entries = iter(state["state"].values())
    if sum(1 for _ in _parameters(optimizer)) != len(state["state"]):
        raise UserError(
            f"the checkpoint's optimiser has {len(state['state'])} parameters, this run's "
            f"{sum(1 for _ in _parameters(optimizer))}: resume with the same model.ansatz and model.optimizer"
        )
    for parameter in _parameters(optimizer):
        entry = next(entries)
        values = {key: value for key, value in entry.items() if torch.is_tensor(value) and value.dim() > 0}
        scalars = {key: value for key, value in entry.items() if key not in values}
        for flat, place, part in _shards(optimizer, parameter):
            flat.data[place] = part(weights[names[id(parameter)]]).to(flat)
            flat_state = base.state[flat]
            flat_state.update(scalars)
            for key, value in values.items():
                flat_state.setdefault(key, torch.zeros_like(flat.data))[place] = part(value).to(flat)
    for group, options in zip(base.param_groups, state["param_groups"], strict=True):
        group.update({key: value for key, value in options.items() if key != "params"})


def _parameters(optimizer: Any) -> Iterator[nn.Parameter]:
    """Parameters in the order in which the optimiser was given them."""
    groups = getattr(optimizer, "bit16_groups", None) or optimizer.fp16_groups
    return (parameter for group in groups for parameter in group)


def _shards(optimizer: Any, parameter: nn.Parameter) -> Iterator[tuple[Tensor, slice, Any]]:
    """This rank's share of a parameter: the flat vector, the place in it, and the map from the whole to the share."""
    if hasattr(parameter, "ds_id"):
        index, offset, numel = optimizer.grad_position[optimizer.get_param_id(parameter)]
        begin = dist.get_rank() * numel
        yield (
            optimizer.fp32_partitioned_groups_flat[index],
            slice(offset, offset + numel),
            lambda whole: _padded(whole.flatten()[begin : begin + numel], numel),
        )
    elif parameter._hp_mapping is not None:  # type: ignore[attr-defined]
        mapping = parameter._hp_mapping  # type: ignore[attr-defined]
        ours, theirs = mapping.hp_fragment_address, mapping.lp_fragment_address
        index = mapping.param_group_index
        flats = getattr(optimizer, "single_partition_of_fp32_groups", None) or optimizer.fp32_groups_flat_partition
        yield (
            flats[index],
            slice(ours.start, ours.start + ours.numel),
            lambda whole: whole.flatten()[theirs.start : theirs.start + theirs.numel],
        )


def _padded(values: Tensor, numel: int) -> Tensor:
    return torch.cat([values, values.new_zeros(numel - len(values))])
