"""Per-sample scores O_ij = ∂ log ψ_i / ∂θ_j from one batched forward and backward pass.

A layer y = W x contributes Σ_t g_t ⊗ x_t to row i, x being its input and g the derivative of log ψ_i by its output
(Goodfellow 2015, 1510.01799). Both are caught by hooks, so no pass per sample is needed, and products with O are
formed layer by layer without ever holding the whole matrix. Parameters that no known layer owns, or whose layer is
used in a way that the hooks do not see, go through ``vmap(grad)``: a probe with random row weights decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from nnqs_lightning.ansatz.base import Ansatz

AMPLITUDE, PHASE = 0, 1
PROBE_ROWS = 8
GRAPH_COST = 8
"""Bytes of an autograd graph for each captured byte, roughly: sizes the row chunks."""


@dataclass(frozen=True)
class Layer:
    """Parameters whose columns of O are computed together, in the column order of :meth:`flatten`."""

    module: nn.Module | None
    """The captured module; None for the rest, which ``vmap(grad)`` serves."""
    parameters: tuple[str, ...]
    parts: tuple[int, ...]
    """Which of log |ψ| (0) and φ (1) depend on them."""

    def flatten(self, tensors: Sequence[Tensor]) -> Tensor:
        """One value per column from tensors shaped like :attr:`parameters`."""
        if isinstance(self.module, nn.Linear):
            return torch.cat([t.reshape(t.shape[0], -1) for t in tensors], dim=1).flatten()
        if isinstance(self.module, nn.Embedding):
            return tensors[0].t().flatten()
        return torch.cat([t.flatten() for t in tensors])


class Columns:
    """The columns of O that belong to one layer, for the parts [k] and rows [n] that it was evaluated on."""

    def __init__(self, layer: Layer, gradients: Tensor, inputs: Tensor | None = None) -> None:
        self.layer = layer
        self.gradients = gradients
        """[k, n, columns], or [k, n, t, q] with ``inputs``."""
        self.inputs = inputs
        """[n, t, p]: column (q, p) is Σ_t gradients_tq inputs_tp."""

    @property
    def shape(self) -> tuple[int, int]:
        """Number of groups (q) and of columns in a group (p)."""
        return self.gradients.shape[-1], 1 if self.inputs is None else self.inputs.shape[-1]

    @property
    def n_places(self) -> int:
        return 0 if self.inputs is None else self.inputs.shape[1]

    @property
    def bytes_per_row(self) -> int:
        held = self.gradients.numel() + (0 if self.inputs is None else self.inputs.numel())
        return held * self.gradients.element_size() // max(self.gradients.shape[1], 1)

    def dense(self, groups: slice = slice(None)) -> Tensor:
        """[k, n, columns] of the groups."""
        chosen = self.gradients[..., groups]
        if self.inputs is None:
            return chosen
        return (chosen.transpose(-1, -2) @ self.inputs).flatten(2)

    def times(self, vector: Tensor) -> Tensor:
        """O v over this layer's columns, float64 [k, n]."""
        vector = vector.to(self.gradients.dtype)
        if self.inputs is None:
            return (self.gradients @ vector).double()
        moved = self.inputs @ vector.view(self.shape).t()
        return (self.gradients * moved).double().sum((-1, -2))

    def map(self, function) -> Columns:  # type: ignore[no-untyped-def]
        """The same columns after ``function`` acted on rows [n, ...] (taking, gathering)."""
        parts = torch.stack([function(part) for part in self.gradients])
        return Columns(self.layer, parts, None if self.inputs is None else function(self.inputs))

    @staticmethod
    def cat(pieces: Sequence[Columns]) -> Columns:
        """Join along rows."""
        inputs = None if pieces[0].inputs is None else torch.cat([p.inputs for p in pieces if p.inputs is not None])
        return Columns(pieces[0].layer, torch.cat([p.gradients for p in pieces], dim=1), inputs)


class PerSampleScores:
    """Scores of one wave function, layer by layer.

    Args:
        ansatz: the wave function; its parameters' current values are read at each call.
        determinants: int64 [n, 2, W], a few rows to probe it with, the same on every rank.
        max_bytes: bound on what one pass holds.
    """

    def __init__(self, ansatz: Ansatz, determinants: Tensor, max_bytes: int) -> None:
        self.ansatz = ansatz
        self.max_bytes = max_bytes
        self.parameters: dict[str, Tensor] = {name: p for name, p in ansatz.named_parameters() if p.requires_grad}
        self.layers, self._row_bytes, self._batched = _plan(ansatz, self.parameters, determinants[:PROBE_ROWS])

    @property
    def parts(self) -> tuple[int, ...]:
        """The parts of log ψ that depend on any parameter."""
        return tuple(sorted({part for layer in self.layers for part in layer.parts}))

    @property
    def separable(self) -> bool:
        """True if amplitude and phase share no parameter."""
        return all(len(layer.parts) == 1 for layer in self.layers)

    @property
    def n_columns(self) -> int:
        return sum(self.parameters[name].numel() for layer in self.layers for name in layer.parameters)

    def groups(self, determinants: Tensor) -> Iterator[list[Columns]]:
        """All columns for all rows, as many layers at a time as ``max_bytes`` allows."""
        budget = self.max_bytes // max(len(determinants), 1)
        pending: list[Layer] = []
        used = 0
        for layer, size in zip(self.layers, self._row_bytes, strict=True):
            if pending and used + size > budget:
                yield self._columns(pending, determinants)
                pending, used = [], 0
            pending.append(layer)
            used += size
        yield self._columns(pending, determinants)

    def row_chunks(self, determinants: Tensor) -> Iterator[tuple[slice, list[Columns]]]:
        """All columns, as many rows at a time as ``max_bytes`` allows."""
        dense_bytes = self.n_columns * len(self.parts) * 16
        rows = max(1, self.max_bytes // (sum(self._row_bytes) + dense_bytes))
        for start in range(0, len(determinants), rows):
            chunk = slice(start, min(start + rows, len(determinants)))
            yield chunk, self._columns(self.layers, determinants[chunk])

    def _columns(self, layers: Sequence[Layer], determinants: Tensor) -> list[Columns]:
        n = len(determinants)
        # A rank without rows takes part with one that is cut off again: shapes stay known.
        rows = determinants if n else self.ansatz.sector.aufbau().to(determinants.device)
        size = max(1, self.max_bytes // (GRAPH_COST * sum(self._row_bytes)))
        chunks = [self._one_pass(layers, piece) for piece in rows.split(size)]
        joined = [Columns.cat(pieces) for pieces in zip(*chunks, strict=True)]
        return joined if n else [columns.map(lambda t: t[:0]) for columns in joined]

    def _one_pass(self, layers: Sequence[Layer], determinants: Tensor) -> list[Columns]:
        captured = [layer for layer in layers if layer.module is not None]
        found: dict[Layer, Columns] = {}
        if captured:
            with torch.enable_grad(), _capture([layer.module for layer in captured]) as calls:
                log_psi = self.ansatz(determinants)
            found.update(zip(captured, _read_columns(captured, calls, log_psi), strict=True))
        for layer in layers:
            if layer.module is None:
                found[layer] = _dense_columns(self.ansatz, layer, determinants, self._batched)
        return [found[layer] for layer in layers]


@contextmanager
def _capture(modules: Sequence[nn.Module | None]) -> Iterator[dict[nn.Module, list[tuple[Tensor, Tensor]]]]:
    """Collects (input, output) of every call of ``modules``."""
    calls: dict[nn.Module, list[tuple[Tensor, Tensor]]] = {}

    def hook(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        calls.setdefault(module, []).append((args[0].detach(), output) if args else (output, output))

    handles = [module.register_forward_hook(hook) for module in modules if module is not None]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def _read_columns(
    layers: Sequence[Layer], calls: dict[nn.Module, list[tuple[Tensor, Tensor]]], log_psi: Tensor
) -> list[Columns]:
    """One backward pass per part, to the outputs of the layers that the part depends on."""
    gradients: dict[nn.Module, list[list[Tensor]]] = {layer.module: [] for layer in layers if layer.module}
    for part, component in enumerate((log_psi.real, log_psi.imag)):
        concerned = [layer.module for layer in layers if part in layer.parts and layer.module]
        outputs = [output for module in concerned for _, output in calls[module]]
        if not outputs:
            continue
        flat = iter(torch.autograd.grad(component.sum(), outputs, retain_graph=True, materialize_grads=True))
        for module in concerned:
            gradients[module].append([next(flat) for _ in calls[module]])
    return [
        _layer_columns(layer, [x for x, _ in calls[layer.module]], gradients[layer.module])
        for layer in layers
        if layer.module
    ]


def _layer_columns(layer: Layer, inputs: list[Tensor], gradients: list[list[Tensor]]) -> Columns:
    """Columns from the inputs of each call and, for each part, the output derivatives of each call."""
    module = layer.module
    if isinstance(module, nn.LayerNorm):
        return _norm_columns(layer, module, inputs, gradients)
    n = gradients[0][0].shape[0]
    g = torch.stack([torch.cat([y.reshape(n, -1, y.shape[-1]) for y in part], dim=1) for part in gradients])
    if isinstance(module, nn.Embedding):
        tokens = torch.cat([x.reshape(n, -1) for x in inputs], dim=1)
        return Columns(layer, g, nn.functional.one_hot(tokens, module.num_embeddings).to(g.dtype))
    x = torch.cat([x.reshape(n, -1, x.shape[-1]) for x in inputs], dim=1).to(g.dtype)
    if len(layer.parameters) == 2:
        x = nn.functional.pad(x, (0, 1), value=1.0)
    return Columns(layer, g, x)


def _norm_columns(layer: Layer, module: nn.LayerNorm, inputs: list[Tensor], gradients: list[list[Tensor]]) -> Columns:
    width = module.weight.numel()
    n = gradients[0][0].shape[0]
    per_part = []
    for part in gradients:
        scale = shift = part[0].new_zeros((n, width))
        for x, y in zip(inputs, part, strict=True):
            normed = nn.functional.layer_norm(x.to(y.dtype), module.normalized_shape, eps=module.eps)
            scale = scale + (y * normed).reshape(n, -1, width).sum(1)
            shift = shift + y.reshape(n, -1, width).sum(1)
        per_part.append(torch.cat([scale, shift], dim=1) if len(layer.parameters) == 2 else scale)
    return Columns(layer, torch.stack(per_part))


def _dense_columns(ansatz: Ansatz, layer: Layer, determinants: Tensor, batched: bool) -> Columns:
    """``vmap(grad)`` by the parameters of ``layer`` alone, or sample by sample where the wave function forbids it."""
    state = {name: tensor.detach() for name, tensor in (*ansatz.named_parameters(), *ansatz.named_buffers())}
    chosen = {name: state.pop(name) for name in layer.parameters}

    def derivative(part: int, determinant: Tensor) -> Tensor:
        def component(values: dict[str, Tensor]) -> Tensor:
            log_psi = functional_call(ansatz, {**state, **values}, (determinant[None],))[0]
            return log_psi.imag if part == PHASE else log_psi.real

        by_name = grad(component)(chosen)
        return layer.flatten([by_name[name] for name in layer.parameters])

    parts = []
    for part in layer.parts:
        if batched:
            parts.append(vmap(lambda row, part=part: derivative(part, row))(determinants))
        else:
            parts.append(torch.stack([derivative(part, row) for row in determinants]))
    return Columns(layer, torch.stack(parts))


def _plan(ansatz: Ansatz, parameters: dict[str, Tensor], determinants: Tensor) -> tuple[list[Layer], list[int], bool]:
    """Layers, bytes per row of each, and whether ``vmap`` works on the rest."""
    candidates = _candidates(ansatz, parameters)
    with torch.enable_grad(), _capture([layer.module for layer in candidates]) as calls:
        log_psi = ansatz(determinants)
    dependence = _dependence(log_psi, parameters)
    layers, columns = [], []
    for layer in candidates:
        parts = tuple(sorted(set().union(*(dependence[name] for name in layer.parameters))))
        layer = Layer(layer.module, layer.parameters, parts)
        if parts and _readable(layer, calls, len(determinants)):
            found = _read_columns([layer], calls, log_psi)[0]
            if _agrees(found, log_psi, parameters):
                layers.append(layer)
                columns.append(found)
    served = {name for layer in layers for name in layer.parameters}
    rest = [name for name in parameters if name not in served and dependence[name]]
    batched = True
    for parts in sorted({dependence[name] for name in rest}):
        layer = Layer(None, tuple(name for name in rest if dependence[name] == parts), parts)
        batched = batched and _vmaps(ansatz, layer, determinants)
        layers.append(layer)
        columns.append(_dense_columns(ansatz, layer, determinants, batched))
    return layers, [found.bytes_per_row for found in columns], batched


def _candidates(ansatz: Ansatz, parameters: dict[str, Tensor]) -> list[Layer]:
    """Modules of exactly the known types whose parameters are all trained and owned by no other module."""
    names = {id(p): name for name, p in parameters.items()}
    owners: dict[int, int] = {}
    for module in ansatz.modules():
        for p in module.parameters(recurse=False):
            owners[id(p)] = owners.get(id(p), 0) + 1
    layers = []
    for module in ansatz.modules():
        own = list(module.parameters(recurse=False))
        known = type(module) in (nn.Linear, nn.Embedding, nn.LayerNorm)
        if known and own and all(id(p) in names and owners[id(p)] == 1 for p in own):
            layers.append(Layer(module, tuple(names[id(p)] for p in own), ()))
    return layers


def _dependence(log_psi: Tensor, parameters: dict[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Which parts each parameter can change, read off the graph: a zero gradient proves nothing."""
    root = log_psi.grad_fn
    if root is not None and root.name() == "ComplexBackward0":
        reached = [_leaves(node) for node, _ in root.next_functions]
    else:
        reached = [_leaves(root)] * 2
    return {
        name: tuple(part for part in (AMPLITUDE, PHASE) if id(p) in reached[part]) for name, p in parameters.items()
    }


def _leaves(root: torch.autograd.graph.Node | None) -> set[int]:
    """ids of the leaf tensors from which a graph node was computed."""
    seen, stack, leaves = set(), [root], set()
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            leaves.add(id(node.variable))
        stack.extend(child for child, _ in node.next_functions)
    return leaves


def _readable(layer: Layer, calls: dict[nn.Module, list[tuple[Tensor, Tensor]]], n: int) -> bool:
    """True if every call of the module carried one row per sample."""
    made = calls.get(layer.module, []) if layer.module else []
    if isinstance(layer.module, nn.Embedding) and (layer.module.max_norm or layer.module.scale_grad_by_freq):
        return False
    return n > 1 and bool(made) and all(x.shape[:1] == y.shape[:1] == (n,) and y.requires_grad for x, y in made)


def _agrees(columns: Columns, log_psi: Tensor, parameters: dict[str, Tensor]) -> bool:
    """Compare Σ_i v_i O_i with autograd for random v: fails where rows mix or a parameter is used elsewhere too."""
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(len(log_psi), dtype=torch.float64, generator=generator).to(log_psi.device)
    layer = columns.layer
    owned = [parameters[name] for name in layer.parameters]
    for part, rows in zip(layer.parts, columns.dense(), strict=True):
        component = log_psi.imag if part == PHASE else log_psi.real
        wanted = torch.autograd.grad((v * component).sum(), owned, retain_graph=True, materialize_grads=True)
        expected = layer.flatten(wanted).double()
        bound = 1e-3 * (v.abs() @ rows.double().abs()).max() + 1e-12
        if (v @ rows.double() - expected).abs().max() > bound:
            return False
    return True


def _vmaps(ansatz: Ansatz, layer: Layer, determinants: Tensor) -> bool:
    """False if the wave function does what ``vmap`` forbids, such as branching on values."""
    try:
        _dense_columns(ansatz, layer, determinants, batched=True)
    except RuntimeError:
        return False
    return True
