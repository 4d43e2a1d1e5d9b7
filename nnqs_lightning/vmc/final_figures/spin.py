"""⟨S²⟩ of a state given on a set of determinants."""

from __future__ import annotations

import torch
from torch import Tensor

from nnqs_lightning.fock import Sector, pack, unpack
from nnqs_lightning.fock.spin_flip import expand

ROWS_AT_ONCE = 16_384


def spin_squared(sector: Sector, determinants: Tensor, psi: Tensor) -> float:
    """⟨ψ|S²|ψ⟩ / ⟨ψ|ψ⟩ with ψ cut off outside the set.

    S² = S_z (S_z + 1) + N_β − Σ_pq a†_pα a_qα a†_qβ a_pβ: the terms with p = q count doubly occupied orbitals, the
    others exchange the spins of two singly occupied ones (Helgaker et al., *Molecular Electronic-Structure Theory*,
    section 2.4).

    Args:
        sector: where the determinants live; those of a sector with a spin parity stand for their combinations.
        determinants: int64 [N, 2, W], distinct.
        psi: complex128 [N], in the phase convention of ``fock``.
    """
    from nnqs_lightning.fock.lookup import DeterminantTable  # imports numba

    determinants, psi = determinants.cpu(), psi.cpu() / psi.abs().max().cpu()
    if sector.spin_parity:
        whole = expand(determinants, sector.spin_parity)
        determinants, psi = whole.determinants, whole.share * psi[whole.member]
    table = DeterminantTable(determinants)
    total = 0.0
    for rows, amplitudes in zip(determinants.split(ROWS_AT_ONCE), psi.split(ROWS_AT_ONCE), strict=True):
        occupation = unpack(rows, sector.n_orb)
        doubly = occupation.prod(-1).sum(-1)
        total += float((amplitudes.abs().square() * (sector.n_beta - doubly)).sum())
        row, exchanged, signs = spin_exchanges(occupation)
        found = table.find(exchanged)
        inside = found >= 0
        overlaps = psi[found[inside]].conj() * amplitudes[row[inside]]
        total -= float((signs[inside] * overlaps.real).sum())
    spin_z = 0.5 * sector.spin
    return spin_z * (spin_z + 1) + total / float(psi.abs().square().sum())


def spin_exchanges(occupation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Every exchange of an α electron alone in its orbital q with a β electron alone in p.

    Returns:
        The row of each, the determinant that comes out, int64 [M, 2, W], and its sign, float64 [M].
    """
    alpha, beta = occupation.bool().unbind(-1)
    row, p, q = ((beta & ~alpha)[:, :, None] & (alpha & ~beta)[:, None, :]).nonzero().unbind(-1)
    exchanged = occupation[row]
    moved = torch.arange(len(row))
    for orbital in (p, q):
        exchanged[moved, orbital] = 1 - exchanged[moved, orbital]
    # Electrons of both spins between the two orbitals; those are not among them.
    below = occupation.sum(-1).cumsum(-1)
    low, high = torch.minimum(p, q), torch.maximum(p, q)
    between = below[row, high] - below[row, low] - 1
    return row, pack(exchanged), 1.0 - 2.0 * (between % 2).double()
