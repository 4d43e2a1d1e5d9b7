"""What DeepSpeed writes, read as a whole.

Shards on disk: ``checkpoint/*model_states.pt`` (one file; one per rank at stage 3) and ``checkpoint/*optim_states.pt``
(one per rank; none at stage 0). Each rank keeps its part of flat vectors, one per parameter group and quantity (the
fp32 master, AdamW's moments, …). At stages 1 and 2 the flat vector of a group is cut into equal parts; at stage 3 each
parameter is, and a rank's vector holds its part of every parameter.
"""

from __future__ import annotations

import math
import re
from collections import OrderedDict
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nnqs_lightning.errors import UserError
from nnqs_lightning.training.strategies.settings import require_deepspeed

TAG = "checkpoint"
"""Folder of the shards inside a checkpoint; Lightning's choice."""
MASTER = "fp32"
ENGINE_KEYS = {
    "module", "buffer_names", "optimizer", "param_shapes", "frozen_param_shapes", "shared_params",
    "frozen_param_fragments", "lr_scheduler", "data_sampler", "random_ltd", "sparse_tensor_module_names",
    "skipped_steps", "global_steps", "global_samples", "dp_world_size", "mp_world_size",
    "checkpoint_parallel_dimensions", "ds_config", "ds_version", "universal_checkpoint_info",
}  # fmt: skip
"""What the engine adds to Lightning's own state."""


def is_sharded(path: str | Path) -> bool:
    """Whether ``path`` is a checkpoint that DeepSpeed wrote."""
    return any((Path(path) / TAG).glob("*model_states.pt"))


def layout(path: str | Path) -> tuple[bool, int]:
    """Whether parameters are sharded (stage 3), and over how many ranks the optimiser's state is (none at stage 0)."""
    shards = Path(path) / TAG
    return bool(_files(shards, "zero_pp_rank_*model_states.pt")), len(_files(shards, "*optim_states.pt"))


def read_whole(path: str | Path) -> dict[str, Any]:
    """An ordinary Lightning checkpoint from a sharded one, everything in float32 on the CPU.

    Raises:
        UserError: if DeepSpeed, whose classes the shards hold, is not installed, or shards are missing.
    """
    require_deepspeed()
    shards = Path(path) / TAG
    model = _load(_files(shards, "*model_states.pt")[0])
    parts = [_load(file)["optimizer_state_dict"] for file in _files(shards, "*optim_states.pt")]
    if parts and len(parts) != model["dp_world_size"]:
        raise UserError(f"{path} has {len(parts)} of {model['dp_world_size']} optimiser shards: it is not whole")
    weights = OrderedDict((name, _float(value)) for name, value in model["module"].items())
    optimizer = model["optimizer"]
    if parts:
        groups = [_Group(shapes, index, parts) for index, shapes in enumerate(model["param_shapes"])]
        for group in groups:
            weights.update({name: group.whole(name, MASTER) for name in group.shapes})
        optimizer = _optimizer_state(groups, _base_optimizer(parts[0])["param_groups"])
    lightning = {key: value for key, value in model.items() if key not in ENGINE_KEYS}
    return {**lightning, "state_dict": weights, "optimizer_states": [optimizer] if optimizer else []}


class _Group:
    """The parameters of one flat vector."""

    def __init__(self, shapes: dict[str, torch.Size], index: int, parts: list[dict[str, Any]]) -> None:
        self.shapes = shapes
        self.index = index
        self.parts = parts
        state = _base_optimizer(parts[0])["state"].get(index, {})
        self.moments = [key for key, value in state.items() if torch.is_tensor(value) and value.dim() > 0]
        self.scalars = {key: value for key, value in state.items() if key not in self.moments}

    def whole(self, name: str, key: str) -> Tensor:
        """Quantity ``key`` of parameter ``name`` in its own shape."""
        flat = torch.cat([self._flat(part, key)[self._slice(part, name)] for part in self.parts])
        shape = self.shapes[name]
        return _float(flat[: math.prod(shape)].view(shape))

    def _flat(self, part: dict[str, Any], key: str) -> Tensor:
        if key == MASTER:
            masters = part.get("single_partition_of_fp32_groups") or part["fp32_flat_groups"]
            return masters[self.index]
        return _base_optimizer(part)["state"][self.index][key]

    def _slice(self, part: dict[str, Any], name: str) -> slice:
        if "param_slice_mappings" in part:
            fragment = part["param_slice_mappings"][self.index].get(name)
            return slice(0, 0) if fragment is None else slice(fragment.start, fragment.start + fragment.numel)
        begin = 0
        for other, shape in self.shapes.items():
            numel = -(-math.prod(shape) // len(self.parts))
            if other == name:
                return slice(begin, begin + numel)
            begin += numel
        raise KeyError(name)


def _optimizer_state(groups: list[_Group], param_groups: list[dict[str, Any]]) -> dict[str, Any]:
    """The ``state_dict`` that the same optimiser would have without shards."""
    state: dict[int, dict[str, Any]] = {}
    whole_groups = []
    for group, options in zip(groups, param_groups, strict=True):
        first = len(state)
        for name in group.shapes:
            state[len(state)] = {**deepcopy(group.scalars), **{key: group.whole(name, key) for key in group.moments}}
        whole_groups.append({**options, "params": list(range(first, len(state)))})
    return {"state": state, "param_groups": whole_groups}


def _base_optimizer(part: dict[str, Any]) -> dict[str, Any]:
    return part["base_optimizer_state"] if "base_optimizer_state" in part else part["optimizer_state_dict"]


def _files(shards: Path, pattern: str) -> list[Path]:
    """In the order of ranks."""
    return sorted(shards.glob(pattern), key=lambda path: [int(number) for number in re.findall(r"\d+", path.name)])


def _load(path: Path) -> Any:
    return torch.load(path, map_location="cpu", weights_only=False)


def _float(value: Tensor) -> Tensor:
    """Half precision as float32; all else as it is, in memory of its own."""
    return value.float() if value.dtype in (torch.float16, torch.bfloat16) else value.clone()
