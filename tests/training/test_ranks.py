"""Every strategy descends alike on two gloo ranks that hold and walk unequal amounts."""

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
