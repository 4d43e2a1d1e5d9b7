"""The contract of a sampler: the type behind the config key ``data.sampler``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from nnqs_lightning.ansatz.base import Ansatz
from nnqs_lightning.fock import SampleBatch


class Sampler(ABC):
    """Draws unique determinants from |ψ|². A draw depends on (seed, step, stream) alone, not on what came before."""

    @abstractmethod
    def sample(self, ansatz: Ansatz, *, seed: int, step: int, stream: int = 0) -> SampleBatch:
        """Draw with the current parameters, without gradient.

        Args:
            ansatz: the wave function.
            seed: seed of the run.
            step: optimiser step; the same (seed, step, stream) gives the same draw.
            stream: separates training (0) from validation (1) and other uses.

        Returns:
            This rank's share of the draw.
        """

    def observe(self, batch: SampleBatch) -> None:
        """Adapt (the number of walkers, say) to the last training draw. Deterministic, the same on every rank."""

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to continue alike."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`."""
