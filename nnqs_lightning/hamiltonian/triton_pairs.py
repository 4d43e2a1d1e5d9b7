"""The pair scan as a Triton kernel: each program sums H ψ for a block of rows over the whole set.

It runs on CPU tensors in Triton's interpreter (environment variable TRITON_INTERPRET=1), where the tests look at it.
"""

# Kernels take what Triton infers.
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from nnqs_lightning.hamiltonian.device import LOG_CAP, DeviceTables


def off_diagonal_sums(
    tables: DeviceTables, determinants: Tensor, log_psi: Tensor, rows: Tensor, block: tuple[int, int] = (16, 64)
) -> Tensor:
    """Σ_{D' ≠ D} H_DD' ψ(D') / ψ(D) over the set for the D at positions ``rows``, complex128 [M].

    Args:
        tables: integrals on the device of ``determinants``.
        determinants: int64 [N, 2, W], distinct.
        log_psi: complex128 [N].
        rows: int64 [M].
        block: rows and columns compared at once by a program, powers of two.
    """
    parts = torch.view_as_real(log_psi).contiguous()
    sums = torch.zeros((len(rows), 2), dtype=torch.float64, device=rows.device)
    if len(rows):
        pair_kernel[(triton.cdiv(len(rows), block[0]),)](
            determinants.contiguous(), rows.contiguous(), parts, tables.h1e, tables.eri, tables.coulomb, tables.direct,
            sums, len(rows), len(determinants), tables.h1e.shape[0], LOG_CAP,
            W=determinants.shape[2], ROWS=block[0], COLUMNS=block[1],
        )  # fmt: skip
    return torch.view_as_complex(sums)


@triton.jit
def popcount(x):
    """Set bits of int64; shifts keep the sign, the masks drop it."""
    x = x - ((x >> 1) & 0x5555555555555555)
    x = (x & 0x3333333333333333) + ((x >> 2) & 0x3333333333333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F0F0F0F0F
    return ((x * 0x0101010101010101) >> 56) & 0x7F


@triton.jit
def n_moved(words, source, target, active, W: tl.constexpr):
    """Electrons that the string at ``words + source`` has and the one at ``words + target`` has not."""
    count = source * 0
    for w in tl.static_range(W):
        lost = tl.load(words + source + w, mask=active, other=0) & ~tl.load(words + target + w, mask=active, other=0)
        count += popcount(lost)
    return count


@triton.jit
def moved_orbital(words, source, target, active, skipped, W: tl.constexpr):
    """Lowest orbital, but for ``skipped`` (−1 for none), that ``source`` has and ``target`` has not; 0 if none."""
    orbital = source * 0
    for w in tl.static_range(W):
        v = W - 1 - w
        lost = tl.load(words + source + v, mask=active, other=0) & ~tl.load(words + target + v, mask=active, other=0)
        one = tl.full(lost.shape, 1, tl.int64)
        lost = tl.where((skipped >> 6) == v, lost & ~(one << (skipped & 63)), lost)
        orbital = tl.where(lost != 0, 64 * v + popcount((lost & -lost) - 1), orbital)
    return orbital


@triton.jit
def electrons_between(words, string, p, q, active, W: tl.constexpr):
    """Electrons of a string strictly between orbitals p and q, of which p is occupied."""
    low, high = tl.minimum(p, q), tl.maximum(p, q)
    count = string * 0
    for w in tl.static_range(W):
        word = tl.load(words + string + w, mask=active, other=0)
        one = tl.full(word.shape, 1, tl.int64)
        # −2^n has the bits from n on, and 2^n − 1 those below.
        above = tl.where((low >> 6) == w, -(one << (low & 63)) & ~(one << (low & 63)), 0)
        above = tl.where((low >> 6) < w, -one, above)
        below = tl.where((high >> 6) == w, (one << (high & 63)) - 1, 0)
        below = tl.where((high >> 6) > w, -one, below)
        count += popcount(word & above & below)
    return count


@triton.jit
def mean_field(words, ket, n_moved_alpha, i, a, h1e, coulomb, direct, active, n_orb, W: tl.constexpr):
    """Element of the single excitation i → a of ``ket``, without its sign."""
    spin = tl.where(n_moved_alpha > 0, 0, 1)
    value = tl.load(h1e + i * n_orb + a, mask=active, other=0.0)
    place = (i * n_orb + a) * n_orb
    for r in range(n_orb):
        same = tl.load(words + ket + spin * W + (r >> 6), mask=active, other=0) >> (r & 63)
        other = tl.load(words + ket + (1 - spin) * W + (r >> 6), mask=active, other=0) >> (r & 63)
        value += (same & 1).to(tl.float64) * tl.load(direct + place + r, mask=active, other=0.0)
        value += (other & 1).to(tl.float64) * tl.load(coulomb + place + r, mask=active, other=0.0)
    return value


@triton.jit
def element(words, bra, ket, h1e, eri, coulomb, direct, active, n_orb, W: tl.constexpr):
    """⟨bra|H|ket⟩ of pairs that differ by one or two electrons, as ``device.off_diagonal_elements`` makes it."""
    alpha_moved = n_moved(words, ket, bra, active, W)
    beta_moved = n_moved(words, ket + W, bra + W, active, W)
    is_double = (alpha_moved + beta_moved) == 2
    same_spin = (alpha_moved == 2) | (beta_moved == 2)
    first = tl.where(alpha_moved > 0, 0, W)
    second = tl.where(same_spin, first, W - first)
    none = tl.full(first.shape, -1, tl.int64) + first * 0
    i = moved_orbital(words, ket + first, bra + first, active, none, W)
    a = moved_orbital(words, bra + first, ket + first, active, none, W)
    j = moved_orbital(words, ket + second, bra + second, active, tl.where(same_spin, i, none), W)
    b = moved_orbital(words, bra + second, ket + second, active, tl.where(same_spin, a, none), W)
    n2 = n_orb * n_orb
    double = tl.load(eri + (i * n_orb + a) * n2 + j * n_orb + b, mask=active & is_double, other=0.0)
    double -= tl.load(eri + (i * n_orb + b) * n2 + j * n_orb + a, mask=active & is_double & same_spin, other=0.0)
    is_single = active & ((alpha_moved + beta_moved) == 1)
    single = mean_field(words, ket, alpha_moved, i, a, h1e, coulomb, direct, is_single, n_orb, W)
    parity = electrons_between(words, ket + first, i, a, active, W)
    of_second = electrons_between(words, ket + second, j, b, active & is_double, W)
    low, high = tl.minimum(j, b), tl.maximum(j, b)
    crossed = ((low < i) & (i < high)) ^ ((low < a) & (a < high))
    parity += of_second + (same_spin & crossed).to(tl.int64)
    return tl.where((parity & 1) == 1, -1.0, 1.0) * tl.where(is_double, double, single)


@triton.jit
def pair_kernel(
    words, rows, log_psi, h1e, eri, coulomb, direct, sums, n_rows, n_set, n_orb, log_cap,
    W: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Sums of H_DD' exp(log ψ(D') − log ψ(D)) over D' ≠ D for a block of rows."""
    n = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    row = tl.load(rows + n, mask=n < n_rows, other=0)
    log_modulus = tl.load(log_psi + 2 * row)
    phase = tl.load(log_psi + 2 * row + 1)
    real = tl.zeros([ROWS], tl.float64)
    imaginary = tl.zeros([ROWS], tl.float64)
    for start in range(0, n_set, COLUMNS):
        column = start + tl.arange(0, COLUMNS).to(tl.int64)
        bra = (row * (2 * W))[:, None] + (column * 0)[None, :]
        ket = (column * (2 * W))[None, :] + (row * 0)[:, None]
        inside = (n < n_rows)[:, None] & (column < n_set)[None, :]
        moved = n_moved(words, ket, bra, inside, W) + n_moved(words, ket + W, bra + W, inside, W)
        near = inside & (moved > 0) & (moved <= 2)
        # Most blocks hold no connected pair and stop here.
        if tl.max(near.to(tl.int32)) > 0:
            value = element(words, bra, ket, h1e, eri, coulomb, direct, near, n_orb, W)
            modulus = tl.load(log_psi + 2 * column, mask=column < n_set, other=0.0)
            angle = tl.load(log_psi + 2 * column + 1, mask=column < n_set, other=0.0)
            exponent = tl.minimum(modulus[None, :] - log_modulus[:, None], log_cap)
            value = tl.where(near, value * tl.exp(exponent), 0.0)
            turn = tl.where(near & (modulus > float("-inf"))[None, :], angle[None, :] - phase[:, None], 0.0)
            real += tl.sum(value * tl.cos(turn), axis=1)
            imaginary += tl.sum(value * tl.sin(turn), axis=1)
    tl.store(sums + 2 * n, real, mask=n < n_rows)
    tl.store(sums + 2 * n + 1, imaginary, mask=n < n_rows)
