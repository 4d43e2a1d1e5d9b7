"""H ψ within a set, by groups of determinants that share a spin string.

H moves electrons of one spin, and then both determinants are in one group of the other spin, or an electron of each,
and then their α strings are singly linked and so are their β strings. So only members of the set are ever visited;
none of the (usually many more) connected determinants outside it is built or looked up.

The mean field of the other spin's electrons belongs to the two-spin part: a pair of links of which one (or both, on the
diagonal) leads from a string to itself.
"""

# Kernels take what numba infers.
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import numpy as np

from nnqs_lightning.fock.compiled import jit, popcount
from nnqs_lightning.hamiltonian.slater_condon import string_element


@jit
def coupled_rows(start, stop, targets, sources, couplings, psi, sums):
    """Add the one-spin part of Σ H_DD' ψ(D') for a block of groups, from a table of elements between strings.

    Args:
        targets: groups of the D; ``sums`` [M, 2] (real and imaginary parts) follows their order.
        sources: groups of the D'; ``psi`` [N, 2] follows their order.
        couplings: [n, n] elements between the strings that differ within a group.
    """
    for g in range(start, stop):
        for k in range(targets.offsets[g], targets.offsets[g + 1]):
            row = couplings[targets.other[k]]
            real, imaginary = 0.0, 0.0
            for t in range(sources.offsets[g], sources.offsets[g + 1]):
                element = row[sources.other[t]]
                real += element * psi[t, 0]
                imaginary += element * psi[t, 1]
            sums[k, 0] += real
            sums[k, 1] += imaginary


@jit
def scanned_rows(start, stop, targets, sources, strings, source_words, tables, psi, sums):
    """The same, with the elements made on the spot for strings that are near.

    Args:
        strings: those that differ within a group.
        source_words: [W, N] the differing string of each source.
    """
    largest = np.max(np.diff(sources.offsets)) + 1
    bits = np.empty(largest, dtype=np.int64)
    near = np.empty(largest, dtype=np.int64)
    for g in range(start, stop):
        first, last = sources.offsets[g], sources.offsets[g + 1]
        for k in range(targets.offsets[g], targets.offsets[g + 1]):
            string = targets.other[k]
            count = near_strings(strings.words, string, source_words, first, last, bits, near)
            real, imaginary = 0.0, 0.0
            for t in near[:count]:
                element = string_element(strings, string, sources.other[t], bits[t - first], tables)
                real += element * psi[t, 0]
                imaginary += element * psi[t, 1]
            sums[k, 0] += real
            sums[k, 1] += imaginary


@jit
def near_strings(words, string, source_words, start, stop, bits, near):
    """Write the t of start … stop − 1 whose string is within two electrons of ``words[string]``.

    ``bits`` gets the differing bits of each. Word-major storage and a pass of its own let the compiler use vectors.
    """
    n = stop - start
    word = words[string, 0]
    for t in range(n):
        bits[t] = popcount(word ^ source_words[0, start + t])
    for w in range(1, words.shape[1]):
        for t in range(n):
            bits[t] += popcount(words[string, w] ^ source_words[w, start + t])
    count = 0
    for t in range(n):
        near[count] = start + t
        count += bits[t] <= 4
    return count


@jit
def linked_rows(start, stop, targets, sources, alpha_links, beta_links, alpha, beta, link_sums, pairs, psi, sums):
    """Add the two-spin part of Σ H_DD' ψ(D') for a block of α groups.

    Args:
        targets: α groups of the D; ``sums`` [M, 2] follows their order.
        sources: α groups of the D'; ``psi`` [N, 2] follows their order.
        alpha_links: single excitations among α strings, ``beta_links`` those among β strings.
        alpha: the α strings, ``beta`` the β strings.
        link_sums: [N + 1] running sum over sources of the number of links of their β strings.
        pairs: eri as a matrix [n_orb², n_orb²].

    A large group meets its sources one by one and looks up where the links of their β strings lead; a small one looks
    up, for each member, which sources its own links lead to.
    """
    n_beta = beta.words.shape[0]
    n_orb = int(np.sqrt(pairs.shape[0]))
    place = np.full(n_beta, -1, dtype=np.int32)
    mean_field = np.empty(pairs.shape[1])
    for g in range(start, stop):
        n_targets = targets.offsets[g + 1] - targets.offsets[g]
        if n_targets == 0:
            continue
        mean_field[:] = 0.0
        for p in alpha.occupied[g]:
            mean_field += pairs[p * n_orb + p]
        from_sources_cost, from_targets_cost = 0, 0
        for m in range(alpha_links.offsets[g], alpha_links.offsets[g + 1]):
            linked = alpha_links.target[m]
            first, last = sources.offsets[linked], sources.offsets[linked + 1]
            from_sources_cost += link_sums[last] - link_sums[first]
            from_targets_cost += n_targets * (last - first)
        if from_targets_cost < from_sources_cost:
            from_targets(g, targets, sources, alpha_links, beta_links, beta, pairs, mean_field, psi, sums, place)
        else:
            from_sources(g, targets, sources, alpha_links, beta_links, beta, pairs, mean_field, psi, sums, place)


@jit
def coulomb(occupied, integrals):
    """Σ_r (pq|rr) over ``occupied`` orbitals, ``integrals`` being the row pq of eri."""
    n_orb = int(np.sqrt(integrals.shape[0]))
    value = 0.0
    for r in occupied:
        value += integrals[r * n_orb + r]
    return value


@jit
def from_sources(g, targets, sources, alpha_links, beta_links, beta, pairs, mean_field, psi, sums, place):
    """Scatter each source over the links of its β string; link −1 leads from the α string to itself."""
    for k in range(targets.offsets[g], targets.offsets[g + 1]):
        place[targets.other[k]] = k
    first = alpha_links.offsets[g]
    for m in range(first - 1, alpha_links.offsets[g + 1]):
        itself = m < first
        linked = g if itself else alpha_links.target[m]
        integrals = mean_field if itself else pairs[alpha_links.pair[m]]
        sign = 1.0 if itself else alpha_links.sign[m]
        for t in range(sources.offsets[linked], sources.offsets[linked + 1]):
            real, imaginary = sign * psi[t, 0], sign * psi[t, 1]
            string = sources.other[t]
            for n in range(beta_links.offsets[string], beta_links.offsets[string + 1]):
                k = place[beta_links.target[n]]
                if k >= 0:
                    element = beta_links.sign[n] * integrals[beta_links.pair[n]]
                    sums[k, 0] += element * real
                    sums[k, 1] += element * imaginary
            k = place[string]
            if k >= 0:
                element = coulomb(beta.occupied[string], integrals)
                sums[k, 0] += element * real
                sums[k, 1] += element * imaginary
    for k in range(targets.offsets[g], targets.offsets[g + 1]):
        place[targets.other[k]] = -1


@jit
def from_targets(g, targets, sources, alpha_links, beta_links, beta, pairs, mean_field, psi, sums, place):
    """Gather, for each target, the sources that its β string is linked to; link −1 as in :func:`from_sources`."""
    first = alpha_links.offsets[g]
    for k in range(targets.offsets[g], targets.offsets[g + 1]):
        string = targets.other[k]
        for n in range(beta_links.offsets[string], beta_links.offsets[string + 1]):
            place[beta_links.target[n]] = n
        # Any mark at or beyond the links stands for the string itself.
        place[string] = beta_links.target.shape[0]
        for m in range(first - 1, alpha_links.offsets[g + 1]):
            itself = m < first
            linked = g if itself else alpha_links.target[m]
            integrals = mean_field if itself else pairs[alpha_links.pair[m]]
            sign = 1.0 if itself else alpha_links.sign[m]
            for t in range(sources.offsets[linked], sources.offsets[linked + 1]):
                n = place[sources.other[t]]
                if n < 0:
                    continue
                if n < beta_links.target.shape[0]:
                    element = sign * beta_links.sign[n] * integrals[beta_links.pair[n]]
                else:
                    element = sign * coulomb(beta.occupied[string], integrals)
                sums[k, 0] += element * psi[t, 0]
                sums[k, 1] += element * psi[t, 1]
        for n in range(beta_links.offsets[string], beta_links.offsets[string + 1]):
            place[beta_links.target[n]] = -1
        place[string] = -1
