"""Which tokens can still lead to a determinant of the wanted particle numbers and symmetry."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nnqs_lightning.errors import UserError
from nnqs_lightning.fock import Sector

N_TOKENS = 4
N_IRREPS = 8
ALPHA, BETA = 1, 2
"""Tokens of singly occupied orbitals."""


class Constraint(nn.Module):
    """Feasibility of tokens by a backward reachability table over (orbital, n_α so far, n_β so far, irrep so far).

    Where the sector has a spin parity, the table also knows whether a singly occupied orbital has come: the first one
    holds an α electron, so that one determinant of each pair is left, and odd S needs one at least.

    A prefix is summed up in one integer, its *node*. A token is allowed if from the node behind it the target can be
    reached, so every prefix that has been decoded can be completed.

    Args:
        sector: particle numbers of the target.
        irreps: bits 0 … 7 of each orbital's irrep in decoding order, int64 [L]; None for no point group.
        target_irrep: bits of the target's irrep.

    Raises:
        UserError: no determinant of the sector has the irrep.
    """

    def __init__(self, sector: Sector, irreps: Tensor | None = None, target_irrep: int = 0) -> None:
        super().__init__()
        self.sector = sector
        self.n_irreps = 1 if irreps is None else N_IRREPS
        n_alpha, n_beta = sector.n_alpha, sector.n_beta
        # One row and one column more than needed catch strings with too many electrons: nothing is reached from there.
        self._stride_alpha = (n_beta + 2) * self.n_irreps
        self._closed_nodes = (n_alpha + 2) * self._stride_alpha
        self._dead_end = self._closed_nodes - 1
        n_nodes = self._closed_nodes * (2 if sector.spin_parity else 1)
        self.irreps: Tensor
        self.reachable: Tensor
        self.register_buffer("irreps", torch.zeros(sector.n_orb, dtype=torch.int64) if irreps is None else irreps)
        self.register_buffer("reachable", torch.zeros(sector.n_orb + 1, n_nodes, dtype=torch.bool))
        target = n_alpha * self._stride_alpha + n_beta * self.n_irreps + target_irrep
        self.reachable[sector.n_orb, target :: self._closed_nodes] = True
        if sector.spin_parity == -1:
            self.reachable[sector.n_orb, target] = False
        nodes = torch.arange(n_nodes)
        for orbital in reversed(range(sector.n_orb)):
            behind = self._behind(nodes, self.irreps[orbital])
            self.reachable[orbital] = self.reachable[orbital + 1][behind].any(-1)
        if not self.reachable[0, self.root]:
            raise UserError(
                f"no determinant with n_alpha {n_alpha} and n_beta {n_beta} has irrep {target_irrep + 1}: change the "
                "symmetry of model.system or set model.ansatz.point_group to false"
            )

    @property
    def root(self) -> int:
        """Node of the empty prefix."""
        return 0

    def advance(self, nodes: Tensor, orbital: int, tokens: Tensor) -> Tensor:
        """Nodes of prefixes [rows] after the ``orbital``-th token [rows]."""
        return self._behind(nodes, self.irreps[orbital]).gather(-1, tokens[:, None]).squeeze(-1)

    def allowed(self, nodes: Tensor, orbital: int) -> Tensor:
        """Which tokens the ``orbital``-th may be: nodes [rows] → bool [rows, 4]."""
        return self.reachable[orbital + 1][self._behind(nodes, self.irreps[orbital])]

    def allowed_along(self, tokens: Tensor) -> Tensor:
        """:meth:`allowed` at every orbital of whole sequences: int64 [N, L] → bool [N, L, 4]."""
        return self.allowed_at(self.nodes_along(tokens))

    def allowed_at(self, nodes: Tensor) -> Tensor:
        """:meth:`allowed` at every orbital, from the nodes before it: int64 [..., L] → bool [..., L, 4]."""
        orbitals = torch.arange(self.sector.n_orb, device=nodes.device)
        return self.reachable[orbitals[:, None] + 1, self._behind(nodes, self.irreps)]

    def nodes_along(self, tokens: Tensor) -> Tensor:
        """Nodes before every token of whole sequences: int64 [N, L] → int64 [N, L]."""
        alpha, beta = tokens & 1, tokens >> 1
        nodes = self._count(alpha, self.sector.n_alpha) * self._stride_alpha
        nodes = nodes + self._count(beta, self.sector.n_beta) * self.n_irreps
        open_shell = alpha ^ beta
        if self.n_irreps > 1:
            nodes = nodes + self._irrep_before(open_shell)
        if self.sector.spin_parity:
            opened = (open_shell.cumsum(1) - open_shell).clamp(max=1)
            by_beta = ((1 - opened) * open_shell * beta).amax(1, keepdim=True)
            nodes = torch.where(opened * by_beta > 0, self._dead_end, nodes + self._closed_nodes * opened)
        return nodes

    def _behind(self, nodes: Tensor, irreps: Tensor) -> Tensor:
        """Nodes after each of the four tokens: [...] → [..., 4]; ``irreps`` broadcasts against ``nodes``."""
        opened, nodes = nodes // self._closed_nodes, nodes % self._closed_nodes
        alpha, beta = nodes // self._stride_alpha, nodes % self._stride_alpha // self.n_irreps
        irrep = nodes % self.n_irreps
        more_alpha = (alpha + 1).clamp(max=self.sector.n_alpha + 1)
        more_beta = (beta + 1).clamp(max=self.sector.n_beta + 1)
        flipped = irrep ^ irreps
        outcomes = [(alpha, beta, irrep), (more_alpha, beta, flipped)]
        outcomes += [(alpha, more_beta, flipped), (more_alpha, more_beta, irrep)]
        behind = torch.stack([a * self._stride_alpha + b * self.n_irreps + g for a, b, g in outcomes], dim=-1)
        if self.sector.spin_parity:
            behind = behind + self._closed_nodes * opened[..., None]
            behind[..., ALPHA] += self._closed_nodes * (1 - opened)
            behind[..., BETA] = torch.where(opened > 0, behind[..., BETA], self._dead_end)
        return behind

    @staticmethod
    def _count(occupied: Tensor, limit: int) -> Tensor:
        """Electrons before each orbital, at most one above the limit."""
        return (occupied.cumsum(1) - occupied).clamp(max=limit + 1)

    def _irrep_before(self, open_shell: Tensor) -> Tensor:
        """XOR of the irreps of the singly occupied orbitals before each one, bit by bit."""
        bits = torch.arange(3, device=open_shell.device)
        flags = open_shell[..., None] * (self.irreps[:, None] >> bits & 1)
        return (((flags.cumsum(1) - flags) & 1) << bits).sum(-1)


def masked_log_softmax(logits: Tensor, allowed: Tensor) -> Tensor:
    """log-softmax over the allowed tokens in float64, −inf at the others, without NaN in values or gradients.

    Args:
        logits: [..., 4].
        allowed: bool [..., 4]; rows that allow nothing give −inf throughout.

    Returns:
        float64 [..., 4].
    """
    logits = logits.double().masked_fill(~allowed, float("-inf"))
    logits = logits.masked_fill(~allowed.any(-1, keepdim=True), 0.0)
    return torch.log_softmax(logits, dim=-1).masked_fill(~allowed, float("-inf"))
