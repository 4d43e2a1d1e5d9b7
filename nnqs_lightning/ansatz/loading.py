"""Starting a wave function from one that was trained on another system."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from nnqs_lightning.ansatz.phase import Phase
from nnqs_lightning.ansatz.transformer import TransformerAnsatz
from nnqs_lightning.errors import UserError
from nnqs_lightning.nn.positional import PositionalScheme


@dataclass
class LoadReport:
    """What became of each parameter."""

    loaded: list[str] = field(default_factory=list)
    """Taken over as they are."""
    resized: list[str] = field(default_factory=list)
    """Made to fit by their scheme or phase."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Left at their start values, with the reason; also names that only the checkpoint has."""

    def __str__(self) -> str:
        lines = [f"{len(self.loaded)} parameters loaded, {len(self.resized)} resized, {len(self.skipped)} skipped"]
        lines += [f"  resized: {name}" for name in self.resized]
        lines += [f"  skipped: {name} ({reason})" for name, reason in self.skipped.items()]
        return "\n".join(lines)


def load_matching(ansatz: TransformerAnsatz, state: Mapping[str, Tensor]) -> LoadReport:
    """Load into ``ansatz`` what fits of another one's state.

    Parameters of the same name and shape are copied. Others are offered to the positional scheme or phase that owns
    them, which may resize them. Buffers stay those of the new system: they hold its integrals, masks and orders.

    Args:
        ansatz: changed in place.
        state: ``state_dict()`` of a TransformerAnsatz, for any system and with any options.

    Returns:
        What was loaded, resized and skipped.

    Raises:
        UserError: the state is not that of a TransformerAnsatz.
    """
    if "order" not in state:
        raise UserError(
            "no decoding order in the checkpoint, expected that of a TransformerAnsatz: change model.init_from"
        )
    report = LoadReport()
    places = _places_of_orbitals(ansatz.order, state["order"])
    with torch.no_grad():
        for name, parameter in ansatz.named_parameters():
            _load_one(ansatz, name, parameter, state.get(name), places, report)
    known = {name for name, _ in ansatz.named_parameters()} | {name for name, _ in ansatz.named_buffers()}
    report.skipped.update({name: "not part of this ansatz" for name in state if name not in known})
    return report


def _load_one(
    ansatz: TransformerAnsatz,
    name: str,
    parameter: nn.Parameter,
    trained: Tensor | None,
    places: Tensor,
    report: LoadReport,
) -> None:
    if trained is None:
        report.skipped[name] = "not in the checkpoint"
        return
    if trained.shape == parameter.shape:
        parameter.copy_(trained)
        report.loaded.append(name)
        return
    owner, local_name = _owner(ansatz, name)
    fitted = owner.resize(local_name, trained.to(parameter), places) if owner is not None else None
    if fitted is None or fitted.shape != parameter.shape:
        report.skipped[name] = f"shape {list(trained.shape)} in the checkpoint, {list(parameter.shape)} here"
        return
    parameter.copy_(fitted)
    report.resized.append(name)


def _owner(ansatz: TransformerAnsatz, name: str) -> tuple[PositionalScheme | Phase | None, str]:
    """The innermost scheme or phase around a parameter, and the parameter's name in it."""
    path = name.split(".")
    for depth in reversed(range(1, len(path))):
        module = ansatz.get_submodule(".".join(path[:depth]))
        if isinstance(module, (PositionalScheme, Phase)):
            return module, ".".join(path[depth:])
    return None, name


def _places_of_orbitals(order: Tensor, trained_order: Tensor) -> Tensor:
    """Where the other system decoded the orbital of the same number, −1 if it has none: int64 [L]."""
    found = order[:, None] == trained_order.to(order.device)[None, :]
    return torch.where(found.any(1), found.int().argmax(1), -1)
