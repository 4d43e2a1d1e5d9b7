"""Every strategy descends alike on gloo ranks, which hold and walk unequal amounts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ranks import run_ranks

pytest.importorskip("deepspeed")
pytestmark = [pytest.mark.slow, pytest.mark.deepspeed]

STAGES = (0, 1, 2, 3)


@pytest.fixture(scope="module")
def fits(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, tuple[list[float], list[torch.Tensor]]]:
    """Losses and full gradients of 20 float32 steps by (strategy, max_rows); a deadlock ends in a timeout."""
    return run_ranks("fit_stages.py", 2, tmp_path_factory.mktemp("stages"))[0]


@pytest.mark.parametrize("stage", STAGES)
def test_losses_equal_those_of_ddp(fits: Any, stage: int) -> None:
    losses, reference = fits[stage, None][0], fits["ddp", None][0]
    assert len(losses) == 20
    assert losses[-1] < losses[0] - 1
    assert losses == pytest.approx(reference, abs=1e-6)


@pytest.mark.parametrize("stage", STAGES)
def test_full_gradients_equal_those_of_ddp(fits: Any, stage: int) -> None:
    for gradient, reference in zip(fits[stage, None][1], fits["ddp", None][1], strict=True):
        assert reference.abs().max() > 0
        torch.testing.assert_close(gradient, reference, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("strategy", ["ddp", *STAGES])
def test_pieces_give_the_gradient_of_the_whole(fits: Any, strategy: Any) -> None:
    for gradient, reference in zip(fits[strategy, 4][1], fits[strategy, None][1], strict=True):
        torch.testing.assert_close(gradient, reference, rtol=1e-5, atol=5e-6)


FLOAT32 = [f"strategy={strategy}" for strategy in ("ddp", 1, 2, 3)]
NATURAL = [
    f"strategy={s},direction={d}" for d in ("minsr,optimizer=sgd", "spring,optimizer=momentum") for s in ("ddp", 2, 3)
]
PIECES = [f"strategy={strategy},max_rows=5" for strategy in ("ddp", 3)]
HALF = ["strategy=ddp,precision=bf16-mixed", "strategy=3,precision=bf16-mixed"]
ON_ANY_NUMBER = [
    "precision=64-true,optimizer=sgd,steps=4",
    "precision=64-true,optimizer=sgd,steps=4,walkers=3",
    "precision=64-true,optimizer=sgd,steps=4,direction=minsr",
    "precision=32-true,optimizer=sgd,steps=4",
]


@pytest.fixture(scope="module")
def wave_functions(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Any]:
    """Energies, gradients and determinants of fits of a small wave function, by number of ranks and options."""
    words = {1: ON_ANY_NUMBER, 2: [*ON_ANY_NUMBER, *FLOAT32, *NATURAL, *PIECES, *HALF], 4: ON_ANY_NUMBER}
    folder = tmp_path_factory.mktemp("wave-functions")
    return {n: run_ranks("fit_small.py", n, folder / str(n), *words[n]) for n in words}


@pytest.mark.parametrize("options", ON_ANY_NUMBER)
@pytest.mark.parametrize("n_ranks", [2, 4])
def test_energies_and_gradients_are_those_of_one_rank(wave_functions: Any, n_ranks: int, options: str) -> None:
    tolerance = 1e-10 if "64" in options else 2e-5
    ours, reference = wave_functions[n_ranks][0][options], wave_functions[1][0][options]
    assert ours["energies"] == pytest.approx(reference["energies"], abs=tolerance)
    assert abs(reference["energies"][-1] - reference["energies"][0]) > 1e-3
    for gradient, whole in zip(ours["gradients"], reference["gradients"], strict=True):
        torch.testing.assert_close(gradient, whole, rtol=0, atol=tolerance)


def test_determinants_are_shared_out_and_ranks_may_be_empty(wave_functions: Any) -> None:
    for options in ON_ANY_NUMBER:
        shares = [rank[options]["unique"] for rank in wave_functions[4]]
        assert [sum(step) for step in zip(*shares, strict=True)] == wave_functions[1][0][options]["unique"]
    assert any(0 in rank[ON_ANY_NUMBER[1]]["unique"] for rank in wave_functions[4])


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_energies_at_every_stage_are_those_of_ddp(wave_functions: Any, stage: int) -> None:
    fits = wave_functions[2][0]
    assert len(fits["strategy=ddp"]["energies"]) == 20
    assert fits[f"strategy={stage}"]["energies"] == pytest.approx(fits["strategy=ddp"]["energies"], abs=1e-6)


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("direction", ["minsr,optimizer=sgd", "spring,optimizer=momentum"])
def test_natural_gradients_at_every_stage_are_those_of_ddp(wave_functions: Any, direction: str, stage: int) -> None:
    ours, reference = (wave_functions[2][0][f"strategy={s},direction={direction}"] for s in (stage, "ddp"))
    # A linear solve amplifies the rounding of float32.
    assert ours["energies"] == pytest.approx(reference["energies"], abs=1e-5)
    assert reference["energies"][-1] < reference["energies"][0] - 0.5


@pytest.mark.parametrize("strategy", ["ddp", 3])
def test_pieces_of_a_step_give_the_energies_of_the_whole(wave_functions: Any, strategy: Any) -> None:
    fits = wave_functions[2][0]
    whole, pieces = fits[f"strategy={strategy}"], fits[f"strategy={strategy},max_rows=5"]
    torch.testing.assert_close(pieces["gradients"][0], whole["gradients"][0], rtol=0, atol=2e-6)
    assert pieces["energies"] == pytest.approx(whole["energies"], abs=1e-4)


@pytest.mark.parametrize("strategy", ["ddp", 3])
def test_half_precision_networks_descend_with_float64_statistics(wave_functions: Any, strategy: Any) -> None:
    fits = wave_functions[2][0]
    half, whole = fits[f"strategy={strategy},precision=bf16-mixed"], fits["strategy=ddp"]
    assert half["energies"] == pytest.approx(whole["energies"], abs=0.02)
    assert half["energies"] != pytest.approx(whole["energies"], abs=1e-5)


def test_times_and_imbalance_are_logged(wave_functions: Any) -> None:
    figures = wave_functions[2][0]["strategy=3"]["figures"]
    phases = [value for key, value in figures.items() if key.startswith("time/")]
    assert len(phases) == 7
    assert all(value >= 0 for value in phases)
    assert figures["imbalance/unique"] == 1.0
    assert figures["imbalance/time"] >= 1.0
    assert figures["traffic/bytes"] > 36 / 2 * (8 * 2 + 16)  # the other rank's packed determinants and log ψ
