"""Least squares in the tangent space of a wave function: (Õ Õᵀ + λ) x = ε for centred, weighted scores Õ.

Row (a, i) of Õ is r_i (O_i − Σ_j w_j O_j), its part a being log |ψ| (0) or φ (1): stacking both parts makes the
complex least-squares problem real, as the parameters are. The same x follows in the space of samples or, where
there are fewer parameters than rows, in theirs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from nnqs_lightning.distributed import all_gather_rows, all_reduce_sum
from nnqs_lightning.optim.per_sample import Columns, PerSampleScores

SYMMETRIC_BLOCKS = 4
SMALL = 256
"""Rows below which a symmetric product is not worth splitting."""
ATTEMPTS = 4
"""Cholesky factorisations tried before eigenvectors."""
ROUNDING = 1e-3
"""Share of x · right by which x · block x may fall short of zero."""


class TangentSpace(ABC):
    """Õ at one set of parameters. Vectors hold this rank's rows, float64 [..., k, n] for the k parts present.

    Args:
        scores: source of the scores.
        determinants: int64 [n, 2, W], this rank's rows.
        weights: float64 [n], w; they sum to one over all ranks.
        row_scale: float64 [n], r; √w in the Fubini–Study metric.
        tangent: a vector in parameter space by parameter name, whose image :attr:`moved` is wanted.
    """

    moved: Tensor
    """Õ · tangent; zero without a tangent."""

    def __init__(
        self,
        scores: PerSampleScores,
        determinants: Tensor,
        weights: Tensor,
        row_scale: Tensor,
        tangent: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.scores = scores
        self.determinants = determinants
        self.weights = weights
        self.row_scale = row_scale
        self.tangent = tangent
        self.moved = torch.zeros((len(scores.parts), len(weights)), dtype=torch.float64, device=weights.device)

    @abstractmethod
    def solve(self, right: Tensor, damping: float) -> tuple[Tensor, float]:
        """x of (Õ Õᵀ + λ) x = ``right`` for several right sides [m, k, n], and the λ ≥ ``damping`` that was used."""

    def part_indices(self, parts: Sequence[int]) -> list[int]:
        """Places of ``parts`` among the parts present."""
        return [self.scores.parts.index(part) for part in parts]

    def _add_moved(self, columns: Columns) -> None:
        if self.tangent is None:
            return
        vector = columns.layer.flatten([self.tangent[name] for name in columns.layer.parameters])
        raw = columns.times(vector)
        centred = raw - all_reduce_sum(raw @ self.weights)[:, None]
        self.moved[self.part_indices(columns.layer.parts)] += centred * self.row_scale


class SampleSpace(TangentSpace):
    """Holds the Gram matrix Õ Õᵀ over the rows of all ranks, float64."""

    def __init__(
        self,
        scores: PerSampleScores,
        determinants: Tensor,
        weights: Tensor,
        row_scale: Tensor,
        tangent: Mapping[str, Tensor] | None = None,
    ) -> None:
        super().__init__(scores, determinants, weights, row_scale, tangent)
        all_weights, self.offset = all_gather_rows(weights)
        self.all_weights, self.all_scale = all_weights, all_gather_rows(row_scale)[0]
        k, n, total = len(scores.parts), len(weights), len(all_weights)
        gram = torch.zeros((k, n, k, total), dtype=torch.float64, device=weights.device)
        for group in scores.groups(determinants):
            for columns in group:
                self._add_moved(columns)
                self._add_gram(gram, columns)
        self.gram = all_gather_rows(gram.transpose(0, 1))[0].transpose(0, 1)

    def solve(self, right: Tensor, damping: float) -> tuple[Tensor, float]:
        """Amplitude and phase rows separately where they share no parameter."""
        whole = all_gather_rows(right.permute(2, 1, 0))[0].transpose(0, 1)
        if self.scores.separable:
            blocks, targets = [self.gram[a, :, a] for a in range(len(whole))], list(whole)
        else:
            blocks, targets = [self.gram.flatten(2).flatten(0, 1)], [whole.flatten(0, 1)]
        solved, shift = solve_damped(blocks, targets, damping)
        x = torch.cat(solved).view(whole.shape)
        return x[:, self.offset : self.offset + right.shape[-1]].permute(2, 0, 1), shift

    def _add_gram(self, gram: Tensor, columns: Columns) -> None:
        """Add the layer's share, by whichever of two ways takes fewer operations."""
        chosen = self.part_indices(columns.layer.parts)
        columns = columns.map(lambda t: all_gather_rows(t)[0])
        q, p = columns.shape
        places = columns.n_places
        if places and 2 * places**2 * (p + q) < p * q:
            products = self._centred(_pairwise(columns, self.offset, gram.shape[1]))
        else:
            products = self._explicit(columns, gram.shape[1])
        for i, a in enumerate(chosen):
            for j, b in enumerate(chosen):
                gram[a, :, b] += products[i, :, j]

    def _explicit(self, columns: Columns, n: int) -> Tensor:
        """Through the layer's own columns of Õ, a slice of them at a time."""
        k, total = columns.gradients.shape[:2]
        q, p = columns.shape
        element = columns.gradients.element_size()
        width = max(1, self.scores.max_bytes // (3 * k * total * p * element))
        product = torch.zeros((k * n, k * total), dtype=torch.float64, device=self.weights.device)
        weights, scale = (t.to(columns.gradients.dtype) for t in (self.all_weights, self.all_scale))
        for start in range(0, q, width):
            dense = columns.dense(slice(start, start + width))
            dense = (dense - (weights @ dense)[:, None]) * scale[:, None]
            rows = dense.flatten(0, 1)
            if n == total:
                _add_symmetric(product, rows)
            else:
                product += dense[:, self.offset : self.offset + n].flatten(0, 1) @ rows.t()
        return product.view(k, n, k, total)

    def _centred(self, raw: Tensor) -> Tensor:
        """r_i r_j (K_ij − Σ_l w_l K_il − Σ_l w_l K_lj + Σ_lm w_l w_m K_lm) of K [k, n, k, N]."""
        n = raw.shape[1]
        own = slice(self.offset, self.offset + n)
        by_row = raw @ self.all_weights
        raw = raw - by_row[..., None]
        raw = raw - all_reduce_sum(torch.einsum("i,aibj->abj", self.weights, raw))[:, None]
        return raw * self.all_scale[own][:, None, None] * self.all_scale


def _pairwise(columns: Columns, offset: int, n: int) -> Tensor:
    """Σ_ts (x_it · x_js)(g_it · g_js) without forming the columns, float64 [k, n, k, N]; for wide layers."""
    assert columns.inputs is not None
    k, total, places, q = columns.gradients.shape
    x = columns.inputs.double().reshape(total * places, -1)
    g = columns.gradients.double()
    own = slice(offset * places, (offset + n) * places)
    inputs = x[own] @ x.t()
    result = torch.empty((k, n, k, total), dtype=torch.float64, device=x.device)
    for a in range(k):
        for b in range(k):
            outputs = g[a].reshape(-1, q)[own] @ g[b].reshape(-1, q).t()
            result[a, :, b] = (outputs * inputs).view(n, places, total, places).sum((1, 3))
    return result


def _add_symmetric(target: Tensor, rows: Tensor) -> None:
    """target += rows rowsᵀ with five eighths of the work of a plain product; sums in float64."""
    n = len(rows)
    if n < SMALL:
        target += rows @ rows.t()
        return
    step = -(-n // SYMMETRIC_BLOCKS)
    for start in range(0, n, step):
        block = (rows[start : start + step] @ rows[: start + step].t()).to(target.dtype)
        target[start : start + step, : start + step] += block
        target[:start, start : start + step] += block[:, :start].t()


class ParameterSpace(TangentSpace):
    """Holds Õᵀ Õ, float64 [P, P]; the dense Õ is kept where it fits into ``max_bytes`` and recomputed otherwise."""

    def __init__(
        self,
        scores: PerSampleScores,
        determinants: Tensor,
        weights: Tensor,
        row_scale: Tensor,
        tangent: Mapping[str, Tensor] | None = None,
    ) -> None:
        super().__init__(scores, determinants, weights, row_scale, tangent)
        k, size = len(scores.parts), scores.n_columns
        self._kept: list[tuple[slice, Tensor]] | None = None
        self.mean = torch.zeros((k, size), dtype=torch.float64, device=weights.device)
        for rows, dense in self._dense():
            self.mean += torch.einsum("i,aip->ap", weights[rows], dense)
        self.mean = all_reduce_sum(self.mean)
        if k * len(weights) * size * 8 <= scores.max_bytes:
            self._kept = list(self._rows())
        vector = None
        if tangent is not None:
            flattened = [layer.flatten([tangent[name] for name in layer.parameters]) for layer in scores.layers]
            vector = torch.cat(flattened).double()
        self.normal = torch.zeros((size, size), dtype=torch.float64, device=weights.device)
        for rows, centred in self._rows():
            flat = centred.flatten(0, 1)
            self.normal.addmm_(flat.t(), flat)
            if vector is not None:
                self.moved[:, rows] = centred @ vector
        self.normal = all_reduce_sum(self.normal)

    def solve(self, right: Tensor, damping: float) -> tuple[Tensor, float]:
        """x = (ε − Õ (Õᵀ Õ + λ)⁻¹ Õᵀ ε) / λ, which is (Õ Õᵀ + λ)⁻¹ ε."""
        force = torch.zeros((self.scores.n_columns, len(right)), dtype=torch.float64, device=right.device)
        for rows, centred in self._rows():
            force += torch.einsum("mai,aip->pm", right[..., rows], centred)
        (step,), shift = solve_damped([self.normal], [all_reduce_sum(force)], damping)
        image = torch.zeros_like(right)
        for rows, centred in self._rows():
            image[..., rows] = (centred @ step).permute(2, 0, 1)
        return (right - image) / shift, shift

    def _rows(self) -> Iterator[tuple[slice, Tensor]]:
        """Rows of Õ, float64 [k, chunk, P]."""
        if self._kept is not None:
            yield from self._kept
            return
        for rows, dense in self._dense():
            yield rows, (dense - self.mean[:, None]) * self.row_scale[rows, None]

    def _dense(self) -> Iterator[tuple[slice, Tensor]]:
        """Rows of O with zero columns where a part does not depend on a parameter."""
        for rows, layers in self.scores.row_chunks(self.determinants):
            k, n = len(self.scores.parts), rows.stop - rows.start
            dense = torch.zeros((k, n, self.scores.n_columns), dtype=torch.float64, device=self.weights.device)
            first = 0
            for columns in layers:
                values = columns.dense().double()
                dense[self.part_indices(columns.layer.parts), :, first : first + values.shape[-1]] = values
                first += values.shape[-1]
            yield rows, dense


def tangent_space(
    scores: PerSampleScores,
    determinants: Tensor,
    weights: Tensor,
    row_scale: Tensor,
    tangent: Mapping[str, Tensor] | None = None,
) -> TangentSpace:
    """The cheaper of the two spaces; collective: every rank calls it and gets the same kind."""
    count = torch.tensor(len(weights), dtype=torch.int64, device=weights.device)
    rows = len(scores.parts) * int(all_reduce_sum(count))
    kind = ParameterSpace if scores.n_columns < rows else SampleSpace
    return kind(scores, determinants, weights, row_scale, tangent)


def solve_damped(blocks: Sequence[Tensor], right: Sequence[Tensor], damping: float) -> tuple[list[Tensor], float]:
    """(block + λ) x = right by Cholesky, λ growing tenfold from ``damping`` until it succeeds, then by eigenvectors.

    A block that rounding has left with an eigenvalue just above −λ has a factor too, but what it gives is that
    eigenvector; x · block x, which cannot be negative, tells.

    Args:
        blocks: diagonal blocks of the matrix, float64 [n, n], symmetric and positive semidefinite up to rounding.
        right: for each block float64 [n, m].
        damping: smallest λ.

    Returns:
        x for each block and the λ used, which is the same for all.
    """
    shift = damping
    for _ in range(ATTEMPTS):
        solved = []
        for block, target in zip(blocks, right, strict=True):
            shifted = block.clone()
            shifted.diagonal().add_(shift)
            factor, failed = torch.linalg.cholesky_ex(shifted)
            if failed:
                break
            x = torch.cholesky_solve(target, factor)
            if bool(((x * (target - shift * x)).sum(0) < -ROUNDING * (x * target).sum(0)).any()):
                break
            solved.append(x)
        else:
            return solved, shift
        shift *= 10
    return [_by_eigenvectors(block, target, shift) for block, target in zip(blocks, right, strict=True)], shift


def _by_eigenvectors(block: Tensor, right: Tensor, shift: float) -> Tensor:
    values, vectors = torch.linalg.eigh(block)
    return vectors @ ((vectors.t() @ right) / (values.clamp(min=0) + shift)[:, None])
