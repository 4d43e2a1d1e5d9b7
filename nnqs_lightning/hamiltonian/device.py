"""Local energies within a set on the device of its tensors: plain torch, or a Triton kernel on a GPU.

Every pair of the set is compared by xor and popcount, as :mod:`nnqs_lightning.hamiltonian.pair_scan` does; hundreds of
thousands of threads make that the quickest way there. Nothing travels to the host, matrix elements of pairs included.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

import torch
from torch import Tensor

from nnqs_lightning.fock import Sector
from nnqs_lightning.fock.determinant import WORD_BITS, popcount, unpack
from nnqs_lightning.hamiltonian.slater_condon import Tables

LOG_CAP = 690.0
"""Quotients beyond e^LOG_CAP are cut there: a row of them, times elements of H, is still finite."""

MAX_PAIRS = 1 << 22
"""Pairs compared at once by the torch version."""

MAX_STATES = 1 << 20
"""Connected states whose elements are made at once."""


@dataclass(frozen=True)
class DeviceTables:
    """:class:`Tables` as float64 tensors on one device."""

    h1e: Tensor
    eri: Tensor
    coulomb: Tensor
    direct: Tensor
    e_core: float

    @classmethod
    def on(cls, device: torch.device, tables: Tables) -> DeviceTables:
        """A copy on ``device``."""
        h1e, eri, coulomb, direct = (
            torch.from_numpy(array).to(device) for array in (tables.h1e, tables.eri, tables.coulomb, tables.direct)
        )
        return cls(h1e, eri, coulomb, direct, tables.e_core)


def local_energies(tables: DeviceTables, determinants: Tensor, log_psi: Tensor, rows: Tensor) -> Tensor:
    """Σ_D' H_DD' ψ(D') / ψ(D) over the set for the D at positions ``rows``; on a GPU by Triton where it is installed.

    Args:
        tables: integrals on the device of ``determinants``.
        determinants: int64 [N, 2, W], distinct.
        log_psi: complex128 [N].
        rows: int64 [M].

    Returns:
        complex128 [M].
    """
    if determinants.is_cuda and importlib.util.find_spec("triton"):
        from nnqs_lightning.hamiltonian.triton_pairs import off_diagonal_sums

        return off_diagonal_sums(tables, determinants, log_psi, rows) + diagonal(tables, determinants[rows])
    chunk = max(1, MAX_PAIRS // max(1, len(determinants)))
    parts = [_chunk_energies(tables, determinants, log_psi, part) for part in rows.split(chunk)]
    return torch.cat(parts) if len(rows) else log_psi[:0]


def _chunk_energies(tables: DeviceTables, determinants: Tensor, log_psi: Tensor, rows: Tensor) -> Tensor:
    differing = popcount(determinants[rows][:, None] ^ determinants[None]).sum((2, 3))
    row, column = torch.nonzero((differing <= 4) & (differing > 0), as_tuple=True)
    elements = off_diagonal_elements(tables, determinants[rows[row]], determinants[column])
    exponent = log_psi[column] - log_psi[rows[row]]
    vanishes = exponent.real == -torch.inf
    exponent = torch.complex(exponent.real.clamp(max=LOG_CAP), exponent.imag.masked_fill(vanishes, 0.0))
    sums = diagonal(tables, determinants[rows]).to(log_psi.dtype)
    return sums.index_add_(0, row, elements * torch.exp(exponent))


def diagonal(tables: DeviceTables, determinants: Tensor) -> Tensor:
    """⟨D|H|D⟩, float64 [N]."""
    occupation = unpack(determinants, tables.h1e.shape[0]).to(torch.float64)
    alpha, beta = occupation.unbind(2)
    direct = torch.einsum("ppr->pr", tables.direct)
    coulomb = torch.einsum("ppr->pr", tables.coulomb)
    one_body = (alpha + beta) @ tables.h1e.diagonal()
    same = 0.5 * ((alpha @ direct * alpha).sum(1) + (beta @ direct * beta).sum(1))
    return tables.e_core + one_body + same + (alpha @ coulomb * beta).sum(1)


def connected_states(tables: DeviceTables, sector: Sector, determinants: Tensor) -> tuple[Tensor, Tensor]:
    """Every state within a double excitation of each determinant, itself first, zero elements included.

    Returns:
        int64 [N, n_connected, 2, W] and float64 [N, n_connected].
    """
    n, spins = len(determinants), determinants.unbind(1)
    moved = [_excited(determinants, spin, sector.n_orb, (sector.n_alpha, sector.n_beta)[spin]) for spin in (0, 1)]
    (alpha, _), (beta, _) = moved
    parts = [determinants[:, None]]
    for one_spin in moved[0]:
        parts.append(torch.stack([one_spin, spins[1][:, None].expand_as(one_spin)], 2))
    for one_spin in moved[1]:
        parts.append(torch.stack([spins[0][:, None].expand_as(one_spin), one_spin], 2))
    shape = (n, alpha.shape[1], beta.shape[1], alpha.shape[2])
    both = torch.stack([alpha[:, :, None].expand(shape), beta[:, None].expand(shape)], 3)
    states = torch.cat([*parts, both.flatten(1, 2)], 1)
    kets = determinants[:, None].expand_as(states)
    elements = off_diagonal_elements(tables, states.flatten(0, 1), kets.flatten(0, 1)).view(n, -1)
    elements[:, 0] = diagonal(tables, determinants)
    return states, elements


def _excited(determinants: Tensor, spin: int, n_orb: int, n_electrons: int) -> tuple[Tensor, Tensor]:
    """Strings of one spin after single and after double excitations, int64 [N, n_singles, W] and [N, n_doubles, W]."""
    string = determinants[:, spin]
    orbitals = torch.arange(n_orb, device=string.device)
    words = torch.arange(string.shape[1], device=string.device)
    bits = torch.where(words == (orbitals // WORD_BITS)[:, None], (1 << (orbitals % WORD_BITS))[:, None], 0)
    occupied_first = unpack(determinants, n_orb)[:, :, spin].argsort(dim=1, descending=True, stable=True)
    holes, particles = bits[occupied_first].split([n_electrons, n_orb - n_electrons], dim=1)
    results = []
    for moves in (1, 2):
        if moves == 2:
            holes, particles = _pairs(holes), _pairs(particles)
        results.append((string[:, None, None] ^ holes[:, :, None] ^ particles[:, None]).flatten(1, 2))
    return results[0], results[1]


def _pairs(bits: Tensor) -> Tensor:
    """Every two of [N, n, W] joined, [N, n (n − 1) / 2, W]."""
    first, second = torch.triu_indices(bits.shape[1], bits.shape[1], offset=1, device=bits.device)
    return bits[:, first] ^ bits[:, second]


def matrix_elements(tables: DeviceTables, bra: Tensor, ket: Tensor) -> Tensor:
    """⟨bra_n|H|ket_n⟩ of pairs [M, 2, W], float64 [M]."""
    differing = popcount(bra ^ ket).sum((1, 2))
    elements = torch.where(differing == 0, diagonal(tables, ket), off_diagonal_elements(tables, bra, ket))
    return torch.where(differing <= 4, elements, 0.0)


def off_diagonal_elements(tables: DeviceTables, bra: Tensor, ket: Tensor) -> Tensor:
    """⟨bra_n|H|ket_n⟩ of pairs [M, 2, W] that differ by one or two electrons, float64 [M].

    Written without branches: a second move that is not there is made from orbital 0 to itself.
    """
    n_orb = tables.h1e.shape[0]
    holes, particles = _two_lowest(ket & ~bra), _two_lowest(bra & ~ket)
    n_moved = popcount(ket & ~bra).sum(2)
    first_spin = (n_moved[:, 0] == 0).long()
    same_spin = n_moved.max(1).values == 2
    is_double = n_moved.sum(1) == 2
    second_spin = torch.where(same_spin, first_spin, 1 - first_spin)
    each = torch.arange(len(ket), device=ket.device)
    i, a = holes[each, first_spin, 0], particles[each, first_spin, 0]
    place = same_spin.long()
    j, b = (torch.where(is_double, move[each, second_spin, place], 0) for move in (holes, particles))
    double = tables.eri[i, a, j, b] - same_spin * tables.eri[i, b, j, a]
    occupation = unpack(ket, n_orb).to(torch.float64)
    same, other = occupation[each, :, first_spin], occupation[each, :, 1 - first_spin]
    single = tables.h1e[i, a] + (tables.direct[i, a] * same).sum(1) + (tables.coulomb[i, a] * other).sum(1)
    parity = _between(ket[each, first_spin], i, a) + is_double * _between(ket[each, second_spin], j, b)
    low, high = torch.minimum(j, b), torch.maximum(j, b)
    # The second move of one spin sees the first one's electron gone from i and come to a.
    parity = parity + same_spin * (((low < i) & (i < high)).long() + ((low < a) & (a < high)).long())
    return (1 - 2 * (parity & 1)) * torch.where(is_double, double, single)


def _two_lowest(words: Tensor) -> Tensor:
    """Lowest and second lowest set bit of [M, 2, W], int64 [M, 2, 2]; 0 where there is none."""
    lowest = _lowest(words)
    mask = torch.zeros_like(words).scatter_(2, (lowest // WORD_BITS).unsqueeze(2), 1)
    rest = words & ~(mask << (lowest % WORD_BITS).unsqueeze(2))
    return torch.stack([lowest, _lowest(rest)], dim=2)


def _lowest(words: Tensor) -> Tensor:
    position = torch.zeros_like(words[..., 0])
    for w in reversed(range(words.shape[-1])):
        word = words[..., w]
        position = torch.where(word != 0, WORD_BITS * w + popcount((word & -word) - 1), position)
    return position


def _between(string: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """Electrons of strings [M, W] strictly between orbitals p and q; p is occupied or equal to q."""
    low, high = torch.minimum(p, q), torch.maximum(p, q)
    count = _below(string, high) - _below(string, low)
    at_low = (string.gather(1, (low // WORD_BITS).unsqueeze(1)).squeeze(1) >> (low % WORD_BITS)) & 1
    return torch.where(low == high, 0, count - at_low)


def _below(string: Tensor, p: Tensor) -> Tensor:
    """Electrons of strings [M, W] in orbitals below p."""
    word, of_p = torch.arange(string.shape[1], device=string.device), (p // WORD_BITS)[:, None]
    within = (torch.ones_like(p) << (p % WORD_BITS))[:, None] - 1
    mask = torch.where(word < of_p, -1, torch.where(word == of_p, within, 0))
    return popcount(string & mask).sum(1)
