"""Phases of wave functions: the type behind the config key ``model.ansatz.phase``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nnqs_lightning.ansatz.tokens import signs
from nnqs_lightning.errors import UserError
from nnqs_lightning.nn import N_TOKENS, Activation


@dataclass(frozen=True)
class PhaseContext:
    """What a phase may know of the ansatz that it serves."""

    n_orb: int
    d_model: int


class Phase(nn.Module, ABC):
    """φ(D) of a determinant given as tokens."""

    reads_hidden: bool = False
    """Whether :meth:`forward` uses the decoder's hidden states; a caller passes None otherwise."""

    def __init__(self, context: PhaseContext) -> None:
        super().__init__()
        self.context = context

    def resize(self, name: str, trained: Tensor, places: Tensor) -> Tensor | None:
        """A parameter trained on another system, made to fit this one; see :meth:`PositionalScheme.resize`."""
        return None

    @abstractmethod
    def forward(self, tokens: Tensor, hidden: Tensor | None) -> Tensor:
        """Phases in radians.

        Args:
            tokens: int64 [N, L] in decoding order.
            hidden: the decoder's states [N, L, d_model] if :attr:`reads_hidden`; state i has seen tokens before i.

        Returns:
            float64 [N].
        """


class NoPhase(Phase):
    """φ = 0: a positive wave function, exact where a basis without sign structure exists."""

    def forward(self, tokens: Tensor, hidden: Tensor | None) -> Tensor:
        """Zeros."""
        return torch.zeros(tokens.shape[0], dtype=torch.float64, device=tokens.device)


class MLPPhase(Phase):
    """A multilayer perceptron on the whole determinant as a ±1 string (Barrett et al. 2022, 2109.12606; Wu et al.
    2023, 2306.16705).

    Args:
        context: what the ansatz tells.
        hidden: widths of the hidden layers.
        activation: class of the nonlinearity.
        gain: factor of the last layer's weights at the start. 1 starts near φ = 0, where an amplitude of the wrong sign
            has to die before it can come back; about 20 spreads the phases over the circle, and it turns instead.
    """

    def __init__(
        self,
        context: PhaseContext,
        hidden: tuple[int, ...] = (128, 128),
        activation: Activation = nn.ReLU,
        gain: float = 1.0,
    ) -> None:
        super().__init__(context)
        self.network = _perceptron(2 * context.n_orb, hidden, 1, activation)
        last = self.network[-1]
        assert isinstance(last, nn.Linear)
        with torch.no_grad():
            last.weight.mul_(gain)

    def forward(self, tokens: Tensor, hidden: Tensor | None) -> Tensor:
        """φ = MLP(±1 string), unbounded."""
        dtype = next(self.network.parameters()).dtype
        return self.network(signs(tokens).to(dtype)).squeeze(-1).double()

    def resize(self, name: str, trained: Tensor, places: Tensor) -> Tensor | None:
        """Input weights of orbitals that were there; zero for new ones, whose occupation leaves the phase as it was."""
        if name != "network.0.weight" or len(trained) != len(self.get_parameter(name)):
            return None
        by_orbital = trained.unflatten(1, (-1, 2))
        return torch.where((places >= 0)[:, None], by_orbital[:, places], 0.0).flatten(1)


class HiddenPhase(Phase):
    """φ = Σ_i g(h_i)[t_i] from the decoder's own hidden states, one angle for each token that may follow.

    Args:
        context: what the ansatz tells.
        hidden: widths of the hidden layers of g; none makes it linear.
        activation: class of the nonlinearity.
    """

    reads_hidden = True

    def __init__(self, context: PhaseContext, hidden: tuple[int, ...] = (), activation: Activation = nn.GELU) -> None:
        super().__init__(context)
        self.network = _perceptron(context.d_model, hidden, N_TOKENS, activation)

    def forward(self, tokens: Tensor, hidden: Tensor | None) -> Tensor:
        """Sum of the angles along the tokens."""
        assert hidden is not None
        angles = self.network(hidden).double()
        return angles.gather(-1, tokens[..., None]).squeeze(-1).sum(-1)


def _perceptron(n_in: int, hidden: tuple[int, ...], n_out: int, activation: Activation) -> nn.Sequential:
    if any(width < 1 for width in hidden):
        raise UserError(f"hidden is {list(hidden)}, expected positive widths: change model.ansatz.phase.hidden")
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [nn.Linear(n_in, width), activation()]
        n_in = width
    return nn.Sequential(*layers, nn.Linear(n_in, n_out))


PhaseFactory = Callable[[PhaseContext], Phase]
"""What the config key holds: a class whose first argument is the context."""
