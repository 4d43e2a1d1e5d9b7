"""``validate`` reports honest figures for every sampler, and overwrites nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from small import data, module, trainer

from nnqs_lightning.errors import UserError
from nnqs_lightning.sampling import GumbelTopKSampler, MetropolisSampler, Sampler, SumOverStates, SystematicSampler
from nnqs_lightning.training.final_figures import FinalFigures

WALKERS = SystematicSampler(n_walkers=10_000)


def validated(folder: Path, sampler: Sampler, draws: int = 1, **options: Any) -> dict[str, Any]:
    run = trainer(folder, 1, callbacks=[FinalFigures(**options)], limit_val_batches=None)
    run.validate(module(), data(sampler, evaluation_draws=draws), verbose=False)
    newest = max(folder.glob("figures*.json"), key=lambda path: path.stat().st_mtime_ns)
    return json.loads(newest.read_text())


@pytest.mark.parametrize(
    ("sampler", "draws", "note", "variational"),
    [
        (SumOverStates(), 1, "the whole sector", True),
        (WALKERS, 1, "n = 1e+04 independent walkers", False),
        (WALKERS, 3, "n = 3 independent draws", False),
        (MetropolisSampler(n_chains=8), 1, "set data.evaluation_draws", False),
        (MetropolisSampler(n_chains=8), 3, "n = 3 independent draws", False),
        (GumbelTopKSampler(n_unique=10), 1, "set data.evaluation_draws", False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Sampler) else str(value),
)
def test_the_error_of_the_network_energy_is_said_only_where_it_is_known(
    sampler: Sampler, draws: int, note: str, variational: bool, tmp_path: Path
):
    row = validated(tmp_path, sampler, draws, subspace=False)["rows"]["network"]
    assert note in row["note"]
    assert row["variational"] is variational
    assert (row["error"] is None) == ("set data" in note)
    assert (row["error"] == 0.0) == variational


def test_energies_of_the_set_lie_between_the_ground_state_and_the_network(tmp_path: Path):
    figures = validated(tmp_path, SystematicSampler(n_walkers=300))
    network = module()
    ground = float(torch.linalg.eigvalsh(network.hamiltonian.dense(network.hamiltonian.sector.determinants()))[0])
    energies = {key: row["energy"] for key, row in figures["rows"].items()}
    assert ground - 1e-9 <= energies["subspace"] <= energies["rayleigh"]
    assert abs(energies["second_order"] - ground) <= energies["subspace"] - ground + 1e-9
    assert figures["set"]["n_sampled"] <= network.hamiltonian.sector.size


def test_several_draws_make_one_set_of_distinct_determinants(tmp_path: Path):
    one = validated(tmp_path / "one", SystematicSampler(n_walkers=15))
    four = validated(tmp_path / "four", SystematicSampler(n_walkers=15), draws=4)
    assert one["set"]["n_sampled"] < four["set"]["n_sampled"] <= 36


def test_earlier_figures_are_kept(tmp_path: Path):
    for _ in range(3):
        validated(tmp_path, WALKERS, subspace=False)
    assert sorted(path.name for path in tmp_path.glob("figures*")) == [
        "figures-2.json",
        "figures-3.json",
        "figures.json",
    ]


@pytest.mark.parametrize("option", [{"max_determinants": 0}, {"truncations": 0}, {"screening": -1.0}])
def test_limits_out_of_range_are_refused_by_key(option: dict[str, Any]):
    with pytest.raises(UserError, match=rf"figures\.{next(iter(option))}"):
        FinalFigures(**option)
