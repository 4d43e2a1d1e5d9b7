"""What is measured: against dense matrices, and by laws of moving parameters to another system."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tiny_study import POSITIONAL, chain, scheme

from nnqs_lightning.study.design import Study
from nnqs_lightning.study.measure import first_below, measure, steps_saved
from nnqs_lightning.study.training import prepare

MakeStudy = Callable[..., Study]


def test_the_error_is_that_of_the_dense_rayleigh_quotient(make_study: MakeStudy) -> None:
    cell = make_study(systems={"h4": chain(4)}).cells()[0]
    result = measure(cell)
    run = prepare(cell.config, cell.rng_seed)
    run.fit()
    determinants = run.module.hamiltonian.sector.determinants()
    matrix = run.module.hamiltonian.sparse(determinants).toarray()
    psi = run.module.ansatz.log_psi(determinants).exp().detach().numpy()
    energy = (psi.conj() @ matrix @ psi).real / (psi.conj() @ psi).real
    exact = np.linalg.eigvalsh(matrix)[0]
    assert result["error_mha"] == pytest.approx(1e3 * (energy - exact), abs=1e-4)
    assert result["reference_method"] == "fci"
    assert result["steps"] == len(result["trace_mha"]) == 2


def test_seeds_differ_and_compared_schemes_share_theirs(make_study: MakeStudy) -> None:
    cells = make_study(
        {"learned": scheme(f"{POSITIONAL}.NoPositional"), "alibi": scheme(f"{POSITIONAL}.Alibi")}
    ).cells()
    starts = [[p.detach() for p in prepare(cell.config, cell.rng_seed).module.ansatz.parameters()] for cell in cells]
    assert all(a.equal(b) for a, b in zip(starts[0], starts[1], strict=True))
    assert not all(a.equal(b) for a, b in zip(starts[0], starts[2], strict=True))


def test_moving_to_the_same_system_loses_nothing(make_study: MakeStudy) -> None:
    result = measure(make_study(targets={"again": {}}).cells()[0])
    again = result["targets"]["again"]
    assert again["zero_shot_mha"] == pytest.approx(result["error_mha"], abs=1e-9)
    assert again["fresh"]["trace_mha"] == result["trace_mha"]
    assert again["steps_saved"] == 1  # the first of two traced errors lies before any step
    assert again["skipped"] == {}


def test_a_longer_chain_starts_from_what_fits(make_study: MakeStudy) -> None:
    study = make_study({"learned": scheme(f"{POSITIONAL}.Alibi")}, targets={"h4": chain(4)}, seeds=1)
    target = measure(study.cells()[0])["targets"]["h4"]
    assert target["loaded"] > 0
    assert target["zero_shot_mha"] != pytest.approx(target["fresh_start_mha"])
    assert target["moved"]["steps"] == target["fresh"]["steps"] == 2


def test_loaded_parameters_take_the_place_of_the_supervised_start(make_study: MakeStudy) -> None:
    supervised = {"model": {"pretraining": {"class_path": "nnqs_lightning.optim.Pretraining"}}}
    study = make_study(systems={"h4": chain(4)}, targets={"bare": {}, "supervised": supervised}, seeds=1)
    bare, supervised_target = measure(study.cells()[0])["targets"].values()
    assert supervised_target["moved"]["trace_mha"] == bare["moved"]["trace_mha"]
    assert supervised_target["fresh_start_mha"] < 0.5 * bare["fresh_start_mha"]


def test_drawn_energies_carry_their_error_bar_and_sums_have_none(make_study: MakeStudy) -> None:
    drawn = {
        "data": {
            "evaluation_sampler": {
                "class_path": "nnqs_lightning.sampling.MultinomialSampler",
                "init_args": {"n_walkers": 100},
            }
        },
        "model": {"validation_energy": {"class_path": "nnqs_lightning.vmc.ExactLocalEnergy"}},
    }
    result = measure(make_study(systems={"h4": chain(4)}, targets={"drawn": drawn}, seeds=1).cells()[0])
    target = result["targets"]["drawn"]
    assert result["error_bar_mha"] == 0
    assert target["zero_shot_error_bar_mha"] > 0
    # Five error bars: a bound that a wrong weight, but no bad luck, breaks.
    assert abs(target["zero_shot_mha"] - result["error_mha"]) < 5 * target["zero_shot_error_bar_mha"]


def test_steps_count_until_the_error_stays_below() -> None:
    assert first_below([9.0, 1.0, 3.0, 1.0, 0.5], 2.0) == 3
    assert first_below([1.0, 1.0], 2.0) == 0
    assert first_below([3.0, 3.0], 2.0) is None
    assert first_below([1.0, float("nan")], 2.0) is None


def test_steps_saved_are_those_a_fresh_run_could_have_spared() -> None:
    fresh = [100.0, 50.0, 20.0, 10.0]
    assert steps_saved([10.0, 5.0, 4.0, 3.0], fresh) == 3
    assert steps_saved([60.0, 30.0, 9.0, 8.0], fresh) == 1
    assert steps_saved(fresh, fresh) == 0
    assert steps_saved([90.0, 80.0, 70.0, 60.0], fresh) is None
