"""Figures of a study; every function gives a matplotlib Figure and touches no global state."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter
from numpy.typing import NDArray

from nnqs_lightning.study.cells import Result
from nnqs_lightning.study.design import Cell, Study
from nnqs_lightning.study.inspection import over_orbitals, relative_attention
from nnqs_lightning.study.statistics import Interval
from nnqs_lightning.study.table import FLOOR_MHA

Array = NDArray[np.float64]
Results = list[tuple[Cell, Result]]

CHEMICAL_ACCURACY_MHA = 1.6


def colours(study: Study) -> dict[str, Any]:
    """One colour for each entry of the compared axis, the baseline black."""
    entries = list(study.axes[study.compare])
    palette = colormaps["tab20"]
    return {name: "black" if name == study.baseline else palette(index % 20) for index, name in enumerate(entries)}


def error_against_steps(study: Study, results: Results) -> Figure:
    """Geometric mean over seeds of the error at each step; a panel for each combination of the other axes."""
    panels = strata(study, results)
    columns = [len(entries) for axis, entries in study.axes.items() if axis != study.compare]
    n_columns = min(4, *columns[-1:], len(panels))
    n_rows = -(-len(panels) // n_columns)
    figure = Figure(figsize=(4.2 * n_columns + 2, 2.6 * n_rows + 0.6), layout="constrained")
    grid = figure.subplots(n_rows, n_columns, squeeze=False, sharex=True)
    palette = colours(study)
    for axes, (title, members) in zip(grid.flat, panels.items(), strict=False):
        for name, colour in palette.items():
            traces = [r["trace_mha"] for cell, r in members if cell.entries[study.compare] == name and "trace_mha" in r]
            if traces:
                logs = np.log10(np.maximum(np.array(traces), FLOOR_MHA))
                steps = np.arange(1, logs.shape[1] + 1)
                width = 2.0 if name == study.baseline else 1.0
                axes.semilogy(steps, 10 ** logs.mean(axis=0), color=colour, label=name, linewidth=width)
        axes.axhline(CHEMICAL_ACCURACY_MHA, color="grey", linestyle=":", linewidth=0.8)
        axes.set_title(title, fontsize=9)
    for axes in list(grid.flat)[len(panels) :]:
        axes.remove()
    figure.supxlabel("step")
    figure.supylabel("error / mHa")
    handles, labels = grid.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", fontsize=8, title=study.compare)
    return figure


def moved_against_fresh(study: Study, results: Results, target: str) -> Figure:
    """Error on a target at each step, from loaded parameters (solid) and from the start (dashed); a panel per entry."""
    entries = list(study.axes[study.compare])
    n_columns = min(4, len(entries))
    n_rows = -(-len(entries) // n_columns)
    figure = Figure(figsize=(2.8 * n_columns, 2.2 * n_rows + 0.5), layout="constrained")
    grid = list(figure.subplots(n_rows, n_columns, squeeze=False, sharex=True, sharey=True).flat)
    for axes, entry in zip(grid, entries, strict=False):
        mine = [r["targets"][target] for cell, r in results if cell.entries[study.compare] == entry and "targets" in r]
        for start, style in {"moved": "-", "fresh": "--"}.items():
            for moved in mine:
                trace = np.maximum(moved[start]["trace_mha"], FLOOR_MHA)
                axes.semilogy(trace, style, color="C0" if start == "moved" else "grey", linewidth=0.8)
        axes.set_title(entry, fontsize=8)
    for axes in grid[len(entries) :]:
        axes.remove()
    figure.suptitle(f"{target}: trained on from loaded parameters (solid) and from the start (dashed)", fontsize=10)
    figure.supxlabel("step")
    figure.supylabel("error / mHa")
    return figure


def rank_diagram(study: Study, ranks: list[Interval]) -> Figure:
    """Mean rank of each entry with its 95 % interval, the best on top."""
    entries = list(study.axes[study.compare])
    order = np.argsort([rank.value for rank in ranks])[::-1]
    figure = Figure(figsize=(6, 0.32 * len(entries) + 1.1), layout="constrained")
    axes = figure.subplots()
    palette = colours(study)
    for height, index in enumerate(order):
        rank = ranks[index]
        axes.plot([rank.low, rank.high], [height, height], color=palette[entries[index]], linewidth=2)
        axes.plot(rank.value, height, "o", color=palette[entries[index]])
    baseline = ranks[entries.index(study.baseline)]
    axes.axvspan(baseline.low, baseline.high, color="grey", alpha=0.15)
    axes.set_yticks(range(len(order)), [entries[index] for index in order])
    axes.set_xlabel(f"mean rank among {len(entries)} (1 = smallest error), bars 95 %")
    axes.set_title(f"grey: interval of {study.baseline}", fontsize=9)
    return figure


def attention_beside_pairs(study: Study, results: Results, title: str, pairs: dict[str, Array]) -> Figure | None:
    """Mean attention (layers, heads, seeds) of every entry beside the exchange integrals and the mutual information.

    Args:
        study: the plan.
        results: cells of one stratum.
        title: its name.
        pairs: matrices of the orbitals' integrals to draw before the maps.
    """
    seen = [(cell, r["inspection"]) for cell, r in results if r.get("inspection")]
    if not seen:
        return None
    matrices = {name.replace("_", " "): matrix for name, matrix in pairs.items()}
    for entry in study.axes[study.compare]:
        mine = [inspection for cell, inspection in seen if cell.entries[study.compare] == entry]
        attention = relative_attention(mine)
        if attention is not None:
            matrices[entry] = attention
    n_columns = 6
    n_rows = -(-len(matrices) // n_columns)
    figure = Figure(figsize=(1.9 * n_columns, 2.1 * n_rows + 0.4), layout="constrained")
    grid = list(figure.subplots(n_rows, n_columns, squeeze=False).flat)
    for axes, (name, matrix) in zip(grid, matrices.items(), strict=False):
        draw_matrix(axes, matrix, name)
    for axes in grid[len(matrices) :]:
        axes.remove()
    figure.suptitle(
        f"{title}: pairs of orbitals; attention of the row's orbital to the column's over the row's mean", fontsize=10
    )
    return figure


def draw_matrix(axes: Axes, matrix: Array, name: str) -> None:
    """A pair matrix without its diagonal, scaled by its own largest entry."""
    shown = np.array(matrix, dtype=np.float64)
    np.fill_diagonal(shown, np.nan)
    axes.imshow(shown, cmap="viridis", vmin=0.0, vmax=np.nanmax(shown) if np.isfinite(shown).any() else 1.0)
    axes.set_title(name, fontsize=8)
    axes.tick_params(labelsize=6)


def bias_against_exchange(study: Study, results: Results, title: str, exchange: Array) -> Figure | None:
    """Positional bias of each pair of orbitals against its exchange integral, a panel for each entry that has one.

    Args:
        study: the plan.
        results: cells of one stratum.
        title: its name.
        exchange: K_pq, hartree.
    """
    seen = [(cell.entries[study.compare], r["inspection"]) for cell, r in results if r.get("inspection")]
    with_bias = [name for name in study.axes[study.compare] if any(n == name and i["bias"] for n, i in seen)]
    if not with_bias:
        return None
    n_columns = min(4, len(with_bias))
    n_rows = -(-len(with_bias) // n_columns)
    figure = Figure(figsize=(2.8 * n_columns, 2.3 * n_rows + 0.5), layout="constrained")
    grid = list(figure.subplots(n_rows, n_columns, squeeze=False, sharex=True).flat)
    for axes, entry in zip(grid, with_bias, strict=False):
        for name, inspection in seen:
            if name == entry and inspection["bias"]:
                draw_bias(axes, inspection, exchange)
        axes.set_title(entry, fontsize=8)
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.tick_params(labelsize=6)
    for axes in grid[len(with_bias) :]:
        axes.remove()
    figure.suptitle(f"{title}: bias of the attention scores (colours: heads) against K_pq / Ha", fontsize=10)
    return figure


def draw_bias(axes: Axes, inspection: dict[str, Any], exchange: Array) -> None:
    """Points (K_pq, bias) of one cell, a colour for each head."""
    biases = over_orbitals(np.array(inspection["bias"]), np.array(inspection["order"]))
    for head, bias in enumerate(biases):
        visible = np.isfinite(bias) & (exchange > 1e-6)
        axes.plot(exchange[visible], bias[visible], ".", markersize=3, color=f"C{head}", alpha=0.6)


def strata(study: Study, results: Results) -> dict[str, Results]:
    """Results by the entries of the axes that are not compared, in the order of the plan."""
    groups: dict[str, Results] = {}
    for cell, result in results:
        title = ", ".join(name for axis, name in cell.entries.items() if axis != study.compare)
        groups.setdefault(title, []).append((cell, result))
    return groups
