"""What a trained decoder has learned about pairs of orbitals: attention maps and positional biases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nnqs_lightning.ansatz import Ansatz, TransformerAnsatz
from nnqs_lightning.ansatz.orbital_context import orbital_pairs
from nnqs_lightning.chem import MolecularIntegrals
from nnqs_lightning.fock import SampleBatch
from nnqs_lightning.nn.attention import CausalSelfAttention
from nnqs_lightning.nn.positional import PositionalScheme

Array = NDArray[np.float64]


def attention_maps(ansatz: TransformerAnsatz, sample: SampleBatch) -> Tensor:
    """Mean attention over the weights of a sample, float64 [layers, H, L, L]; rows are queries in decoding order.

    Query i predicts the i-th orbital; key 0 is the start token, key j carries the token of orbital j − 1.
    """
    maps = []
    with torch.no_grad(), _recorded(ansatz) as weights:
        ansatz.conditionals(ansatz.to_tokens(sample.determinants))
        maps = [torch.einsum("n,nhij->hij", sample.weights, layer.double()) for layer in weights]
    return torch.stack(maps) / sample.weights.sum()


@contextmanager
def _recorded(ansatz: TransformerAnsatz) -> Iterator[list[Tensor]]:
    """The output of every softmax of the decoder's attention while the context is open."""
    seen: list[Tensor] = []

    def keep(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        seen.append(output)

    layers = [module for module in ansatz.modules() if isinstance(module, CausalSelfAttention)]
    handles = [layer.softmax.register_forward_hook(keep) for layer in layers]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def positional_bias(scheme: PositionalScheme) -> Tensor | None:
    """Bias of a scheme at queries and keys of zero, float64 [H, L, L]; None where it has none."""
    context = scheme.context
    positions = torch.arange(context.n_positions) + context.start_position
    zeros = torch.zeros(1, context.n_heads, context.n_positions, context.d_head)
    with torch.no_grad():
        bias = scheme.bias(zeros, zeros, positions, positions)
    return None if bias is None else bias.double().reshape(context.n_heads, *bias.shape[-2:])


def over_orbitals(maps: Array, order: Array) -> Array:
    """Maps [..., L, L] over (query, key) places → [..., n_orb, n_orb] over the orbitals themselves.

    Entry (p, q) belongs to the query that predicts p and the key that carries q's token; NaN where q is decoded
    after p and cannot be seen. The start token is left out.
    """
    n_orb = maps.shape[-1]
    pairs = np.full(maps.shape, np.nan)
    for query in range(n_orb):
        for key in range(1, query + 1):
            pairs[..., order[query], order[key - 1]] = maps[..., query, key]
    return pairs


def inspect(ansatz: Ansatz, sample: SampleBatch) -> dict[str, Any] | None:
    """``attention`` [layers, H, L, L], ``bias`` [H, L, L] or null, and ``order`` [L], as lists.

    None for wave functions that are no transformers.
    """
    if not isinstance(ansatz, TransformerAnsatz):
        return None
    bias = positional_bias(ansatz.decoder.positional)
    return {
        "attention": attention_maps(ansatz, sample).numpy().round(4).tolist(),
        "bias": None if bias is None else bias.numpy().round(4).tolist(),
        "order": ansatz.order.tolist(),
    }


def relative_attention(inspections: list[dict[str, Any]]) -> Array | None:
    """Mean attention over layers, heads and cells of one stratum, [n_orb, n_orb] as :func:`over_orbitals` has it.

    Rows see different numbers of orbitals: 1 is what each would get if all were alike. None without inspections.
    """
    if not inspections:
        return None
    maps = [
        over_orbitals(np.array(seen["attention"]), np.array(seen["order"])).mean(axis=(0, 1)) for seen in inspections
    ]
    mean = np.mean(maps, axis=0)
    visible = np.isfinite(mean)
    total = np.where(visible.any(1), np.nansum(mean, axis=1), np.nan)
    return mean * visible.sum(1, keepdims=True) / total[:, None]


def mean_bias(inspections: list[dict[str, Any]]) -> Array | None:
    """Mean bias over heads and cells of one stratum, [n_orb, n_orb]; None where there is none."""
    maps = [
        over_orbitals(np.array(seen["bias"]), np.array(seen["order"])).mean(axis=0)
        for seen in inspections
        if seen["bias"] is not None
    ]
    return np.mean(maps, axis=0) if maps else None


def rank_correlation(map_of_pairs: Array, matrix: Array) -> float:
    """Spearman's ρ over the pairs of different orbitals that a map knows; NaN where either is constant."""
    from scipy.stats import spearmanr

    chosen = np.isfinite(map_of_pairs) & ~np.eye(len(matrix), dtype=bool)
    first, second = map_of_pairs[chosen], matrix[chosen]
    if len(first) < 2 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return float("nan")
    return float(spearmanr(first, second).statistic)


def pair_matrices(integrals: MolecularIntegrals) -> dict[str, Array]:
    """What the integrals say of pairs of orbitals, [n_orb, n_orb] by name: mutual information, exchange K_pq / Ha."""
    pairs = orbital_pairs(integrals, torch.arange(integrals.n_orb))
    return {name: pairs[name].numpy() for name in ("mutual_information", "exchange") if name in pairs}
