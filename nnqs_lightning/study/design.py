"""The plan of a study: which cells there are, what each one's configuration is, and by which key it is known."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import yaml
from jsonargparse.typing import Path_fr, register_type

from nnqs_lightning.errors import UserError

FORMAT = 1
"""Part of every key: raise it when the meaning of a result changes."""

SECTIONS = ("model", "data", "trainer")


class Fragment:
    """Part of a configuration of ``fit``: any of the sections ``model``, ``data`` and ``trainer``, not yet parsed."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        if not isinstance(content, Mapping) or not set(content) <= set(SECTIONS):
            raise UserError(f"{str(content)[:80]!r} is no fragment of a configuration: expected {', '.join(SECTIONS)}")
        self.content = dict(content)

    @classmethod
    def of(cls, value: Any) -> Fragment:
        """From a mapping, or from a file whose path counts from the file that names it."""
        return cls(yaml.safe_load(Path_fr(value).get_content()) if isinstance(value, str) else value)


# Left to itself, jsonargparse would complete every class_path in here out of its context.
register_type(Fragment, serializer=lambda fragment: fragment.content, deserializer=Fragment.of)


@dataclass(frozen=True)
class Cell:
    """One training run of a study."""

    entries: dict[str, str]
    """Name of the entry taken from each axis."""
    seed: int
    """Which repetition, from 1."""
    rng_seed: int
    """What ``seed_everything`` gets. Entries of the compared axis share it; no other two cells do."""
    config: dict[str, Any]
    """Base and fragments, merged."""
    targets: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Configurations of the systems to which the trained parameters move on."""

    @property
    def key(self) -> str:
        """Fingerprint of all that decides the result."""
        content = {"config": self.config, "targets": self.targets, "rng_seed": self.rng_seed, "format": FORMAT}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def label(self) -> str:
        """Entries and seed in one line."""
        return " ".join([*self.entries.values(), f"seed {self.seed}"])


@dataclass
class Study:
    """A factorial of short training runs: every combination of the entries of all axes, repeated for each seed.

    Args:
        axes: By axis and by name of the entry: a fragment of a configuration of `fit` (sections model, data, trainer),
            or a file that holds one.
        base: What all runs share, `trainer.max_steps` among it: the fragment over which those of the axes are laid.
        compare: The axis whose entries are compared. They share their seeds, so that comparisons are made in pairs.
        baseline: The entry of that axis with which the others are compared.
        folder: Where results go: one file for each finished cell, table, report and plots.
        seeds: Repetitions of each combination.
        first_seed: Number of the first of them; a later one tests on fresh seeds what earlier ones suggested.
        targets: Fragments laid over the configuration of a trained cell: its parameters are loaded there
            (`model.init_from`), evaluated at once, trained on, and compared with a training from the start.
    """

    axes: dict[str, dict[str, Fragment]]
    base: Fragment
    compare: str
    baseline: str
    folder: str
    seeds: int = 5
    first_seed: int = 1
    targets: dict[str, Fragment] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.compare not in self.axes or self.baseline not in self.axes[self.compare]:
            raise UserError(
                f"compare is '{self.compare}' and baseline '{self.baseline}': expected one of the axes "
                f"({', '.join(self.axes)}) and one of its entries"
            )
        if self.seeds < 1:
            raise UserError(f"seeds is {self.seeds}, expected at least 1")

    @property
    def seed_numbers(self) -> range:
        """The repetitions."""
        return range(self.first_seed, self.first_seed + self.seeds)

    def cells(self) -> list[Cell]:
        """Every cell, one seed after the other: a study cut short has fewer seeds, not fewer entries."""
        choices = [[(axis, name) for name in entries] for axis, entries in self.axes.items()]
        return [self._cell(dict(entries), seed) for seed in self.seed_numbers for entries in product(*choices)]

    def _cell(self, entries: dict[str, str], seed: int) -> Cell:
        config = self.base.content
        for axis, name in entries.items():
            config = merge(config, self.axes[axis][name].content)
        targets = {name: merge(config, fragment.content) for name, fragment in self.targets.items()}
        stratum = sorted((axis, name) for axis, name in entries.items() if axis != self.compare)
        digest = hashlib.sha256(json.dumps([stratum, seed]).encode()).hexdigest()
        return Cell(entries, seed, int(digest[:7], 16), config, targets)


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Lay one fragment over another, key by key. A class of another ``class_path`` brings its own arguments only."""
    if "class_path" in above and above["class_path"] != below.get("class_path", above["class_path"]):
        return deepcopy(dict(above))
    merged = deepcopy(dict(below))
    for key, value in above.items():
        beneath = merged.get(key)
        if isinstance(value, Mapping) and isinstance(beneath, Mapping):
            merged[key] = merge(beneath, value)
        else:
            merged[key] = deepcopy(value)
    return merged


@dataclass(frozen=True)
class Shard:
    """A share of the cells: every ``count``-th, from the ``index``-th on (counted from 0)."""

    index: int = 0
    count: int = 1

    @classmethod
    def parse(cls, text: str | None) -> Shard:
        """``i/n`` with i from 1; without it, the place of this task in its SLURM array, or everything.

        Raises:
            UserError: not of this form, or i outside 1 … n.
        """
        if text is None:
            return cls._of_array()
        found = re.fullmatch(r"(\d+)/(\d+)", text)
        if not found or not 1 <= int(found[1]) <= int(found[2]):
            raise UserError(f"--shard is '{text}', expected i/n with i from 1 to n, such as 3/16")
        return cls(int(found[1]) - 1, int(found[2]))

    @classmethod
    def _of_array(cls) -> Shard:
        if "SLURM_ARRAY_TASK_ID" not in os.environ:
            return cls()
        task, first, last, step = (
            int(os.environ[f"SLURM_ARRAY_TASK_{name}"]) if f"SLURM_ARRAY_TASK_{name}" in os.environ else default
            for name, default in (("ID", 0), ("MIN", 0), ("MAX", 0), ("STEP", 1))
        )
        return cls((task - first) // step, (last - first) // step + 1)

    def of(self, cells: list[Cell]) -> list[Cell]:
        """This share."""
        return cells[self.index :: self.count]
