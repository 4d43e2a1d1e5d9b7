"""A study small enough to run within a test: H2 and three schemes, two steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tiny_study import BASE, POSITIONAL, chain, scheme

from nnqs_lightning.study.design import Fragment, Study


@pytest.fixture(scope="session")
def make_study(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Study]:
    """Studies in folders that are new, or given."""

    def make(
        schemes: dict[str, dict[str, Any]] | None = None,
        systems: dict[str, dict[str, Any]] | None = None,
        targets: dict[str, dict[str, Any]] | None = None,
        seeds: int = 2,
        baseline: str = "learned",
        folder: str | None = None,
    ) -> Study:
        schemes = schemes or {
            "learned": scheme(f"{POSITIONAL}.LearnedAbsolute"),
            "relative": scheme(f"{POSITIONAL}.RelativeBias"),
            "none": scheme(f"{POSITIONAL}.NoPositional"),
        }
        axes = {"scheme": schemes, "system": systems or {"h2": chain(2)}}
        return Study(
            axes={axis: {name: Fragment(entry) for name, entry in entries.items()} for axis, entries in axes.items()},
            base=Fragment(BASE),
            compare="scheme",
            baseline=baseline,
            folder=folder or str(tmp_path_factory.mktemp("study")),
            seeds=seeds,
            targets={name: Fragment(entry) for name, entry in (targets or {}).items()},
        )

    return make
