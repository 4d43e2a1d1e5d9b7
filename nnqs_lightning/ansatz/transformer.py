"""The autoregressive transformer wave function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from nnqs_lightning.ansatz.base import AutoregressiveAnsatz
from nnqs_lightning.ansatz.constraint import Constraint, masked_log_softmax
from nnqs_lightning.ansatz.orbital_context import orbital_features, orbital_pairs
from nnqs_lightning.ansatz.orbital_order import OrbitalOrderFactory, Reversed
from nnqs_lightning.ansatz.phase import MLPPhase, PhaseContext, PhaseFactory
from nnqs_lightning.ansatz.tokens import detokenize, opened_by_alpha, tokenize
from nnqs_lightning.chem.integrals import MolecularIntegrals
from nnqs_lightning.errors import UserError
from nnqs_lightning.fock import Sector
from nnqs_lightning.fock.spin_flip import is_representative, represent
from nnqs_lightning.nn import Activation, Decoder
from nnqs_lightning.nn.cache import KeyValueCache
from nnqs_lightning.nn.positional import LearnedAbsolute, PositionalFactory, PositionContext

SPIN_PARITIES = {None: 0, "even": 1, "odd": -1}


@dataclass(frozen=True)
class DecodingState:
    """Prefixes of one length, each with what decoding needs to go on."""

    length: int
    """Tokens per prefix."""
    nodes: Tensor
    """int64 [rows], the prefixes as the constraint sees them."""
    log_conditionals: Tensor
    """float64 [rows, 4] of the next token; no columns behind the last orbital."""
    cache: KeyValueCache

    def __len__(self) -> int:
        return len(self.nodes)


class TransformerAnsatz(AutoregressiveAnsatz):
    """log ψ = ½ Σ_i log p(t_i | t_<i) + iφ with a decoder-only transformer for p (Wu et al. 2023, 2306.16705).

    ψ is normalised over the sector; determinants outside of it (or of the wrong irrep, with ``point_group``) have
    log ψ = −inf, and with ``spin_flip`` so have those that represent no combination. The network runs in the dtype of
    its parameters, probabilities are normalised in float64.

    Args:
        integrals: fixes the orbitals and the sector, and feeds schemes that know the orbitals.
        d_model: width of the residual stream.
        n_heads: attention heads; they divide d_model.
        n_layers: transformer blocks.
        mlp_factor: width of the MLPs in units of d_model.
        activation: class of the MLPs' nonlinearity.
        positional: positional scheme.
        start_place: ``shared``: the start token takes part in the count, inputs [S, t_0, t_1, …] sit at 0, 1, 2, …;
            ``own``: it sits at −1, and the token of orbital i at i.
        orbital_order: which orbital is decoded first, second, …
        phase: model of the phase φ.
        point_group: forbid determinants of another irrep than the target's; needs ORBSYM.
        spin_flip: ``even`` or ``odd`` total spin S, for as many α as β electrons: ψ is made of combinations that spin
            flip maps to plus (even) or minus (odd) themselves, half as many as there are determinants; null for none.

    Raises:
        UserError: sizes that do not fit together, point_group without irreps, or spin_flip where α and β electrons
            are not equally many.
    """

    def __init__(
        self,
        integrals: MolecularIntegrals,
        d_model: int = 32,
        n_heads: int = 4,
        n_layers: int = 2,
        mlp_factor: float = 4.0,
        activation: Activation = nn.GELU,
        positional: PositionalFactory = LearnedAbsolute,
        start_place: Literal["shared", "own"] = "shared",
        orbital_order: OrbitalOrderFactory = Reversed,
        phase: PhaseFactory = MLPPhase,
        point_group: bool = False,
        spin_flip: Literal["even", "odd"] | None = None,
    ) -> None:
        super().__init__()
        _check_sizes(d_model, n_heads, n_layers, mlp_factor)
        parity = SPIN_PARITIES[spin_flip]
        self.sector = Sector(integrals.n_orb, integrals.n_alpha, integrals.n_beta, parity)
        self.order: Tensor
        self.register_buffer("order", torch.as_tensor(orbital_order(integrals).permutation(), dtype=torch.int64))
        self.constraint = _constraint(integrals, self.sector, self.order, point_group)
        context = PositionContext(
            n_positions=integrals.n_orb,
            d_model=d_model,
            n_heads=n_heads,
            d_head=d_model // n_heads,
            start_position=0 if start_place == "shared" else -1,
            pairs=orbital_pairs(integrals, self.order),
            features=orbital_features(integrals, self.order),
        )
        self.decoder = Decoder(positional(context), n_layers, round(mlp_factor * d_model), activation)
        self.phase_model = phase(PhaseContext(integrals.n_orb, d_model))

    def log_psi(self, determinants: Tensor) -> Tensor:
        tokens = self.to_tokens(determinants)
        hidden = self.decoder(tokens)
        log_p = self._log_conditionals_along(tokens, hidden).gather(-1, tokens[..., None]).squeeze(-1).sum(-1)
        if self.sector.spin_parity:
            log_p = log_p.masked_fill(~is_representative(determinants), float("-inf"))
        return torch.complex(0.5 * log_p, self.phase_model(tokens, hidden))

    def conditionals(self, tokens: Tensor) -> Tensor:
        return self._log_conditionals_along(tokens, self.decoder(tokens))

    def phase(self, determinants: Tensor) -> Tensor:
        tokens = self.to_tokens(determinants)
        return self.phase_model(tokens, self.decoder(tokens) if self.phase_model.reads_hidden else None)

    def to_tokens(self, determinants: Tensor) -> Tensor:
        tokens = tokenize(determinants, self.order)
        return opened_by_alpha(tokens) if self.sector.spin_parity else tokens

    def to_determinants(self, tokens: Tensor) -> Tensor:
        determinants = detokenize(tokens, self.order)
        return represent(determinants)[0] if self.sector.spin_parity else determinants

    def begin(self) -> DecodingState:
        cache, hidden = self.decoder.begin()
        nodes = torch.full((1,), self.constraint.root, dtype=torch.int64, device=self.order.device)
        return DecodingState(0, nodes, self._log_conditionals(hidden, nodes, 0), cache)

    def log_conditionals(self, state: DecodingState) -> Tensor:
        return state.log_conditionals

    def advance(self, state: DecodingState, parents: Tensor, tokens: Tensor) -> DecodingState:
        nodes = self.constraint.advance(state.nodes[parents], state.length, tokens)
        length = state.length + 1
        if length == self.n_steps:
            nothing = torch.empty((len(nodes), 0), dtype=torch.float64, device=nodes.device)
            return DecodingState(length, nodes, nothing, state.cache)
        cache, hidden = self.decoder.step(state.cache, parents, tokens)
        return DecodingState(length, nodes, self._log_conditionals(hidden, nodes, length), cache)

    def along(self, state: DecodingState, tokens: Tensor) -> list[DecodingState]:
        cache, hidden = self.decoder.line(state.cache, tokens)
        nodes = self.constraint.nodes_along(tokens[None])[0]
        log_conditionals = masked_log_softmax(self.decoder.head(hidden), self.constraint.allowed_at(nodes))
        return [
            DecodingState(i, nodes[i : i + 1], log_conditionals[i : i + 1], cache.first(i + 1))
            for i in range(len(tokens))
        ]

    def join(self, states: list[DecodingState]) -> DecodingState:
        return DecodingState(
            states[0].length,
            torch.cat([state.nodes for state in states]),
            torch.cat([state.log_conditionals for state in states]),
            KeyValueCache.join([state.cache for state in states]),
        )

    def cache_bytes(self, depth: int) -> int:
        weight = self.decoder.head.weight
        row = 2 * len(self.decoder.blocks) * weight.shape[1] * weight.element_size()
        # Ancestors share their rows. Twice: a pool that grows holds its old rows until they are copied.
        return 2 * row + 4 * (depth + 1)

    def _log_conditionals(self, hidden: Tensor, nodes: Tensor, orbital: int) -> Tensor:
        return masked_log_softmax(self.decoder.head(hidden), self.constraint.allowed(nodes, orbital))

    def _log_conditionals_along(self, tokens: Tensor, hidden: Tensor) -> Tensor:
        return masked_log_softmax(self.decoder.head(hidden), self.constraint.allowed_along(tokens))


def _check_sizes(d_model: int, n_heads: int, n_layers: int, mlp_factor: float) -> None:
    if n_heads < 1 or d_model < 1 or d_model % n_heads:
        raise UserError(
            f"{n_heads} heads do not divide a width of {d_model}: "
            "change model.ansatz.n_heads or model.ansatz.d_model so that d_model / n_heads is whole"
        )
    if n_layers < 1:
        raise UserError(f"n_layers is {n_layers}, expected at least 1: change model.ansatz.n_layers")
    if round(mlp_factor * d_model) < 1:
        raise UserError(f"mlp_factor is {mlp_factor}, expected a positive number: change model.ansatz.mlp_factor")


def _constraint(integrals: MolecularIntegrals, sector: Sector, order: Tensor, point_group: bool) -> Constraint:
    if not point_group:
        return Constraint(sector)
    if integrals.orbsym is None:
        raise UserError(
            "point_group is true but the integrals carry no irreps: "
            "give model.system a point group or set model.ansatz.point_group to false"
        )
    irreps = torch.tensor(integrals.orbsym, dtype=torch.int64)[order] - 1
    if irreps.min() < 0 or irreps.max() > 7 or not 1 <= integrals.wfn_sym <= 8:
        raise UserError(
            f"orbsym is {integrals.orbsym} and wfn_sym {integrals.wfn_sym}, expected irreps 1 … 8 of D2h or a "
            "subgroup: change model.system or set model.ansatz.point_group to false"
        )
    return Constraint(sector, irreps, integrals.wfn_sym - 1)
