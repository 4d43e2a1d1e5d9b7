"""Doubles in falling order of |H|: those below a threshold are never visited, and still drawn from by their weight.

For each pair of orbitals the integrals of its doubles lie sorted, so that a row is left at its first small one (the
heat-bath idea; Holmes, Tubman and Umrigar, J. Chem. Theory Comput. 12, 3674 (2016)). Real integrals do not tell holes
from particles, (ia|jb) = (ai|bj), so each spin enters its rows by whichever of its occupied and empty orbitals are
fewer: that leaves the fewest entries whose partners are not free.
"""

# Kernels take what numba infers.
# mypy: disallow-untyped-defs=False

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nnqs_lightning.chem.integrals import Array
from nnqs_lightning.fock.compiled import jit
from nnqs_lightning.fock.lookup import hash_row
from nnqs_lightning.hamiltonian.connected import excitations, excite, mean_field, write_single
from nnqs_lightning.hamiltonian.slater_condon import ONE, Tables, diagonal_element


class SortedRows(NamedTuple):
    """Non-zero integrals of the doubles p → r, q → s for every pair (p, q), the largest first."""

    offsets: NDArray[np.int64]
    """[n_rows + 1]: row k is ``offsets[k] : offsets[k + 1]``."""
    target: NDArray[np.int16]
    """[L, 2]: r and s."""
    value: Array
    """[L]"""
    tail: Array
    """[L]: Σ |value| from here to the end of the row."""


class SortedDoubles(NamedTuple):
    """Rows for electrons of one spin and of both."""

    same_spin: SortedRows
    """Row p (p − 1) / 2 + q, p > q: (pr|qs) − (ps|qr) with r > s."""
    two_spins: SortedRows
    """Row p n_orb + q: (pr|qs), p and r of α electrons, q and s of β."""


def sorted_doubles(tables: Tables) -> SortedDoubles:
    """Sort the integrals of all doubles; they take some 25 n_orb⁴ bytes, less where symmetry makes zeros."""
    n = tables.h1e.shape[0]
    first, second = np.divmod(np.arange(n * n), n)
    blocks = []
    for p in range(n):
        values = tables.eri[p].transpose(1, 0, 2).reshape(n, n * n).copy()
        values[:, first == p] = 0.0
        values[second == np.arange(n)[:, None]] = 0.0
        blocks.append(sorted_block(values, first, second))
    high, low = np.tril_indices(n, -1)
    shared = np.zeros(tables.same_spin.shape, dtype=np.bool_)
    for mine in (high, low):
        for other in (high, low):
            shared |= mine[:, None] == other
    same_spin = sorted_block(np.where(shared, 0.0, tables.same_spin), high, low)
    return SortedDoubles(joined([same_spin]), joined(blocks))


def sorted_block(values: Array, first: NDArray[np.int64], second: NDArray[np.int64]) -> SortedRows:
    """Sort each row of ``values`` [R, C], whose columns stand for the pairs (``first``, ``second``); zeros leave."""
    order = np.argsort(-np.abs(values), axis=1, kind="stable")
    ordered = np.take_along_axis(values, order, axis=1)
    tail = np.cumsum(np.abs(ordered[:, ::-1]), axis=1)[:, ::-1]
    held = ordered != 0.0
    target = np.stack([first[order[held]], second[order[held]]], axis=1).astype(np.int16)
    return SortedRows(np.concatenate([[0], np.cumsum(held.sum(1))]), target, ordered[held], tail[held])


def joined(blocks: list[SortedRows]) -> SortedRows:
    """Blocks of rows, one after the other."""
    counts = np.concatenate([np.diff(block.offsets) for block in blocks])
    target, value, tail = (np.concatenate(arrays) for arrays in list(zip(*blocks, strict=True))[1:])
    return SortedRows(np.concatenate([[0], np.cumsum(counts)]), target, value, tail)


class Spin(NamedTuple):
    """Scratch for the string of one spin: its :class:`Excitations`, and how it enters the sorted rows."""

    occupied: NDArray[np.int64]
    empty: NDArray[np.int64]
    ranks: NDArray[np.int64]
    strings: NDArray[np.uint64]
    signs: NDArray[np.float64]
    counts: NDArray[np.int64]
    field: Array
    few: NDArray[np.int64]
    """The occupied orbitals or the empty ones, whichever are fewer."""
    n_few: NDArray[np.int64]
    """[1]"""
    place: NDArray[np.int32]
    """[n_few, n_orb]: number of the single between few[k] and orbital r; 0 where r is no partner of few[k]."""
    phase: NDArray[np.int8]
    """[n_few, n_orb]: sign of that single, 0 where there is none."""


class Rest(NamedTuple):
    """Scratch for what one determinant has below the threshold: its small singles, and the ends of rows of doubles."""

    running: Array
    """Σ |H| of all parts up to each one."""
    spins: NDArray[np.int64]
    """[n, 2]: spins of the electrons of a double; of a single its spin and −1."""
    few: NDArray[np.int64]
    """[n, 2]: numbers of p and q among the few orbitals of their spins."""
    entry: NDArray[np.int64]
    """Where in the sorted rows the small doubles begin; the place of a single among those of its spin."""
    stop: NDArray[np.int64]
    """Where the row ends."""
    value: Array
    """Element of a single."""
    size: NDArray[np.int64]
    """[1]: number of parts."""


@jit
def empty_spin(n_orb, n_words):
    """Scratch for any string."""
    half = (n_orb >> 1) + 1
    singles = excitations(n_orb, n_words)
    return Spin(
        singles.occupied,
        singles.empty,
        singles.ranks,
        singles.strings,
        singles.signs,
        singles.counts,
        singles.field,
        np.empty(half, dtype=np.int64),
        np.empty(1, dtype=np.int64),
        np.empty((half, n_orb), dtype=np.int32),
        np.empty((half, n_orb), dtype=np.int8),
    )


@jit
def empty_rest(n_orb):
    """Scratch for any determinant."""
    most = n_orb * (n_orb + 1)
    return Rest(
        np.empty(most),
        np.empty((most, 2), dtype=np.int64),
        np.empty((most, 2), dtype=np.int64),
        np.empty(most, dtype=np.int64),
        np.empty(most, dtype=np.int64),
        np.empty(most),
        np.zeros(1, dtype=np.int64),
    )


@jit
def describe(string, spin):
    """Fill in the scratch of one spin."""
    excite(string, spin)
    n_occupied, n_empty = spin.counts
    spin.n_few[0] = min(n_occupied, n_empty)
    spin.place[:], spin.phase[:] = 0, 0
    for m in range(n_occupied * n_empty):
        k, l = m // n_empty, m % n_empty
        p, r = spin.occupied[k], spin.empty[l]
        if n_occupied > n_empty:
            k, p, r = l, r, p
        spin.few[k] = p
        spin.place[k, r] = m
        spin.phase[k, r] = spin.signs[m]


@jit
def add_part(rest, weight, first_spin, second_spin, k, l, entry, stop, value):
    """Append a part of the given Σ |H|."""
    n = rest.size[0]
    rest.running[n] = weight + (rest.running[n - 1] if n else 0.0)
    rest.spins[n, 0], rest.spins[n, 1] = first_spin, second_spin
    rest.few[n, 0], rest.few[n, 1] = k, l
    rest.entry[n], rest.stop[n] = entry, stop
    rest.value[n] = value
    rest.size[0] = n + 1


@jit
def keep_large(determinant, tables, doubles, threshold, alpha, beta, rest, states, elements, count):
    """Write the D' with |⟨D'|H|D⟩| > threshold ≥ 0 from place ``count`` on, D first; return the place behind them.

    ``alpha``, ``beta`` and ``rest`` are scratch; the last is told what was left out.
    """
    describe(determinant[0], alpha)
    describe(determinant[1], beta)
    rest.size[0] = 0
    states[count] = determinant
    elements[count] = diagonal_element(alpha.occupied, alpha.counts[0], beta.occupied, beta.counts[0], tables)
    count += 1
    # One call in a loop is compiled once.
    for spin in range(2):
        mine, other = (alpha, beta) if spin == 0 else (beta, alpha)
        count = keep_singles(determinant, spin, mine, other, tables, threshold, rest, states, elements, count)
    for first_spin, second_spin in ((0, 0), (1, 1), (0, 1)):
        first, second = alpha if first_spin == 0 else beta, alpha if second_spin == 0 else beta
        rows = doubles.same_spin if first_spin == second_spin else doubles.two_spins
        count = keep_doubles(
            determinant, first_spin, second_spin, first, second, rows, threshold, rest, states, elements, count
        )
    return count


@jit
def keep_singles(determinant, spin, singles, other, tables, threshold, rest, states, elements, count):
    """Append the large singles of one spin; return the new number of states."""
    mean_field(singles, other, tables)
    n_occupied, n_empty = singles.counts
    for k in range(n_occupied):
        for l in range(n_empty):
            m = k * n_empty + l
            value = singles.field[k, singles.empty[l]]
            if abs(value) > threshold:
                write_single(determinant, spin, singles.strings, m, states, count)
                elements[count] = singles.signs[m] * value
                count += 1
            elif value != 0.0:
                add_part(rest, abs(value), spin, -1, 0, 0, m, m, singles.signs[m] * value)
    return count


@jit
def keep_doubles(
    determinant, first_spin, second_spin, first, second, rows, threshold, rest, states, elements, count
):  # fmt: skip
    """Append the large doubles of one kind, each row up to its first small one; return the new number of states."""
    same_spin = first_spin == second_spin
    n_words = determinant.shape[1]
    target, value = rows.target, rows.value
    for k in range(first.n_few[0]):
        p = first.few[k]
        for l in range(k if same_spin else second.n_few[0]):
            q = second.few[l]
            row = (p * (p - 1) >> 1) + q if same_spin else p * first.place.shape[1] + q
            t, stop = rows.offsets[row], rows.offsets[row + 1]
            while t < stop and abs(value[t]) > threshold:
                r, s = np.int64(target[t, 0]), np.int64(target[t, 1])
                phase = double_phase(same_spin, p, q, r, s, first.phase[k, r], second.phase[l, s])
                m, n = first.place[k, r], second.place[l, s]
                # Written in any case, and kept where the next one starts behind it.
                for w in range(n_words):
                    first_string, second_string = first.strings[m, w], second.strings[n, w]
                    if same_spin:
                        second_string ^= first_string ^ determinant[first_spin, w]
                        first_string = determinant[1 - first_spin, w]
                    states[count, 1 - second_spin, w] = first_string
                    states[count, second_spin, w] = second_string
                elements[count] = phase * value[t]
                count += phase != 0
                t += 1
            if t < stop:
                add_part(rest, rows.tail[t], first_spin, second_spin, k, l, t, stop, 0.0)
    return count


@jit
def double_phase(same_spin, p, q, r, s, first_phase, second_phase):
    """Sign of the double between p and r and between q and s from those of the singles."""
    phase = np.int64(first_phase) * np.int64(second_phase)
    # In one string, with p > q and r > s, either move is seen by the other.
    return -phase if same_spin and (q < r) == (p < s) else phase


@jit
def draw_small(determinant, doubles, n_draws, key, alpha, beta, rest, states, elements, count):
    """Append the feasible ones of ``n_draws`` draws from ``rest``; return the new number of states.

    A draw takes an entry with probability |H| / Σ |H|, the sum over ``rest`` with entries that are no partners; such a
    draw adds nothing. So the elements, sign(H) Σ |H| / n_draws, make an unbiased estimate.
    """
    n_parts = rest.size[0]
    weight = rest.running[n_parts - 1]
    for draw in range(n_draws):
        point = weight * uniform(key, draw)
        part = min(np.searchsorted(rest.running[:n_parts], point, side="right"), n_parts - 1)
        first_spin, second_spin = rest.spins[part]
        first = alpha if first_spin == 0 else beta
        if second_spin < 0:
            write_single(determinant, first_spin, first.strings, rest.entry[part], states, count)
            elements[count] = np.sign(rest.value[part]) * weight / n_draws
            count += 1
            continue
        second = alpha if second_spin == 0 else beta
        same_spin = first_spin == second_spin
        rows = doubles.same_spin if same_spin else doubles.two_spins
        t = entry_at(rows.tail, rest.entry[part], rest.stop[part], rest.running[part] - point)
        k, l = rest.few[part]
        p, q, r, s = first.few[k], second.few[l], np.int64(rows.target[t, 0]), np.int64(rows.target[t, 1])
        phase = double_phase(same_spin, p, q, r, s, first.phase[k, r], second.phase[l, s])
        if phase != 0:
            states[count] = determinant
            for spin, orbital in ((first_spin, p), (first_spin, r), (second_spin, q), (second_spin, s)):
                states[count, spin, orbital >> 6] ^= ONE << np.uint64(orbital & 63)
            elements[count] = phase * np.sign(rows.value[t]) * weight / n_draws
            count += 1
    return count


@jit
def entry_at(tail, start, stop, point):
    """The last t of start … stop − 1 with ``tail[t]`` ≥ point, ``tail`` falling; start if there is none."""
    low, high = start, stop
    while high - low > 1:
        middle = (low + high) >> 1
        if tail[middle] >= point:
            low = middle
        else:
            high = middle
    return low


@jit
def uniform(key, counter):
    """A number in [0, 1) for each (key, counter): SplitMix64 started at ``key``."""
    mixed = key + np.uint64(counter + 1) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return (mixed >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@jit
def screened_rows(
    start, stop, determinants, tables, doubles, threshold, n_draws, seed, width, states, elements, is_drawn, counts
):  # fmt: skip
    """:func:`keep_large` and :func:`draw_small` for a block of determinants [N, 2, W]; see ``connect_rows``.

    ``is_drawn`` tells drawn states from kept ones. The draws depend on ``seed`` and the determinant.
    """
    n_orb, n_words = tables.h1e.shape[0], determinants.shape[2]
    alpha, beta, rest = empty_spin(n_orb, n_words), empty_spin(n_orb, n_words), empty_rest(n_orb)
    rows_of_words = determinants.reshape(determinants.shape[0], 2 * n_words)
    end = start * width
    for row in range(start, stop):
        begin = end
        kept = keep_large(determinants[row], tables, doubles, threshold, alpha, beta, rest, states, elements, begin)
        end = kept
        if n_draws > 0 and rest.size[0] > 0:
            key = hash_row(rows_of_words, row) ^ seed
            end = draw_small(determinants[row], doubles, n_draws, key, alpha, beta, rest, states, elements, kept)
        is_drawn[begin:kept] = False
        is_drawn[kept:end] = True
        counts[row] = end - begin
    return start * width, end
