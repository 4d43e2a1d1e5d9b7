"""Which members of a set H connects: the pattern of its sparse matrix, found by groups that share a spin string."""

# Kernels take what numba infers.
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import numpy as np

from nnqs_lightning.fock.compiled import jit, lowest_bit, popcount
from nnqs_lightning.hamiltonian.slater_condon import rank_sign, string_element, string_energy
from nnqs_lightning.hamiltonian.string_groups import near_strings


@jit
def neighbour_rows(start, stop, targets, by_alpha, by_beta, alpha, beta, betas, alphas, alpha_links, beta_links):
    """Sources within a double excitation of each target (itself included), for a block of α groups of targets.

    Args:
        targets: α groups of the targets.
        by_alpha: α groups of the sources, ``by_beta`` their β groups.
        alpha: the α strings, ``beta`` the β strings.
        betas: [W, N] β strings of the sources in the order of ``by_alpha``.
        alphas: [W, N] α strings of the sources in the order of ``by_beta``.
        alpha_links: single excitations among α strings, ``beta_links`` those among β strings.

    Returns:
        The number of sources of each target, in the order of ``targets``, and their positions in the set.
    """
    first_target = targets.offsets[start]
    counts = np.zeros(targets.offsets[stop] - first_target, dtype=np.int64)
    found = np.empty(1024, dtype=np.int64)
    n_found = 0
    largest = max(np.max(np.diff(by_alpha.offsets)), np.max(np.diff(by_beta.offsets))) + 1
    bits = np.empty(largest, dtype=np.int64)
    near = np.empty(largest, dtype=np.int64)
    marked = np.zeros(beta.words.shape[0], dtype=np.bool_)
    for g in range(start, stop):
        for k in range(targets.offsets[g], targets.offsets[g + 1]):
            before = n_found
            string = targets.other[k]
            first, last = by_alpha.offsets[g], by_alpha.offsets[g + 1]
            count = near_strings(beta.words, string, betas, first, last, bits, near)
            found, n_found = append(found, n_found, by_alpha.order[near[:count]])
            first, last = by_beta.offsets[string], by_beta.offsets[string + 1]
            count = near_strings(alpha.words, g, alphas, first, last, bits, near)
            others = near[:count]
            found, n_found = append(found, n_found, by_beta.order[others[bits[others - first] > 0]])
            found, n_found = append_linked(found, n_found, g, string, by_alpha, alpha_links, beta_links, marked)
            counts[k - first_target] = n_found - before
    return counts, found[:n_found].copy()


@jit
def append(array, size, values):
    """Append ``values`` to the first ``size`` entries of ``array``; return it, or a larger copy, and the new size."""
    grown = size + values.shape[0]
    if grown > array.shape[0]:
        larger = np.empty(2 * grown, dtype=array.dtype)
        larger[:size] = array[:size]
        array = larger
    array[size:grown] = values
    return array, grown


@jit
def append_linked(found, n_found, g, string, by_alpha, alpha_links, beta_links, marked):
    """Append the sources that differ from target (α string g, β ``string``) by one electron of each spin."""
    linked_betas = beta_links.target[beta_links.offsets[string] : beta_links.offsets[string + 1]]
    for target in linked_betas:
        marked[target] = True
    for m in range(alpha_links.offsets[g], alpha_links.offsets[g + 1]):
        linked = alpha_links.target[m]
        for t in range(by_alpha.offsets[linked], by_alpha.offsets[linked + 1]):
            if marked[by_alpha.other[t]]:
                found, n_found = append(found, n_found, by_alpha.order[t : t + 1])
    for target in linked_betas:
        marked[target] = False
    return found, n_found


@jit
def element_rows(start, stop, rows, columns, alpha_numbers, beta_numbers, alpha, beta, tables, elements):
    """⟨D_row|H|D_column⟩ of a block of connected pairs of positions in a set.

    Args:
        alpha_numbers: [N] number of each determinant's α string, ``beta_numbers`` of its β string.
        alpha: the α strings, ``beta`` the β strings.
    """
    for n in range(start, stop):
        s, t = alpha_numbers[rows[n]], alpha_numbers[columns[n]]
        u, v = beta_numbers[rows[n]], beta_numbers[columns[n]]
        if s == t and u == v:
            energy = string_energy(alpha.occupied[s], tables) + string_energy(beta.occupied[u], tables)
            elements[n] = tables.e_core + energy + repulsion(alpha, s, beta, u, tables)
        elif u == v:
            elements[n] = one_spin_element(alpha, s, t, beta, u, tables)
        elif s == t:
            elements[n] = one_spin_element(beta, u, v, alpha, s, tables)
        else:
            i, a = single_move(alpha.words, s, t)
            j, b = single_move(beta.words, u, v)
            sign = rank_sign(alpha.ranks[s], i, a) * rank_sign(beta.ranks[u], j, b)
            elements[n] = sign * tables.eri[i, a, j, b]


@jit
def one_spin_element(strings, s, t, others, u, tables):
    """Element between strings s and t of one spin beside string u of the other."""
    bits = 0
    for w in range(strings.words.shape[1]):
        bits += popcount(strings.words[s, w] ^ strings.words[t, w])
    value = string_element(strings, s, t, bits, tables)
    if bits == 2:
        i, a = single_move(strings.words, s, t)
        field = 0.0
        for k in range(others.occupied.shape[1]):
            field += tables.coulomb[i, a, others.occupied[u, k]]
        value += rank_sign(strings.ranks[s], i, a) * field
    return value


@jit
def single_move(words, s, t):
    """The orbital that string s loses and the one that it gains on the way to t, one electron away."""
    i, a = 0, 0
    for w in range(words.shape[1]):
        lost, gained = words[s, w] & ~words[t, w], words[t, w] & ~words[s, w]
        if lost:
            i = 64 * w + lowest_bit(lost)
        if gained:
            a = 64 * w + lowest_bit(gained)
    return i, a


@jit
def repulsion(alpha, s, beta, u, tables):
    """Coulomb energy between the electrons of α string s and β string u."""
    value = 0.0
    for k in range(alpha.occupied.shape[1]):
        for l in range(beta.occupied.shape[1]):
            value += tables.coulomb[alpha.occupied[s, k], alpha.occupied[s, k], beta.occupied[u, l]]
    return value


@jit
def product_rows(start, stop, rows, offsets, columns, elements, psi, sums):
    """Σ_column H ψ for a block of ``rows`` of a sparse matrix, in the order of its columns; ψ and sums in parts."""
    for n in range(start, stop):
        real, imaginary = 0.0, 0.0
        for k in range(offsets[rows[n]], offsets[rows[n] + 1]):
            real += elements[k] * psi[columns[k], 0]
            imaginary += elements[k] * psi[columns[k], 1]
        sums[n, 0] = real
        sums[n, 1] = imaginary
