"""What a study found, as ``report.md`` and plots, from its finished cells alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from nnqs_lightning.study import plots
from nnqs_lightning.study.cells import Result
from nnqs_lightning.study.design import Cell, Study
from nnqs_lightning.study.inspection import mean_bias, pair_matrices, rank_correlation, relative_attention
from nnqs_lightning.study.statistics import Comparison, Interval, compare, friedman_p, mean_ranks, seed_spread
from nnqs_lightning.study.table import log_errors, target_figure
from nnqs_lightning.study.training import prepare

Array = NDArray[np.float64]
Results = list[tuple[Cell, Result]]

MOVED = ("zero_shot", "fresh_start", "moved", "fresh")
"""Errors on a target, in the order of the report's columns."""


def write(study: Study, results: Results) -> list[Path]:
    """Write the report and its plots into the folder of the study; at least two seeds of every cell must be there."""
    folder = Path(study.folder)
    scopes = all_scopes(study, results)
    ranks = mean_ranks(scopes["all"])
    comparisons = compare(scopes, list(study.axes[study.compare]), study.baseline)
    figures: dict[str, Figure | None] = {
        "error_vs_steps": plots.error_against_steps(study, results),
        "ranks": plots.rank_diagram(study, ranks),
    }
    strata = plots.strata(study, results)
    pairs_of = {title: _pairs(members[0][0]) for title, members in strata.items()}
    for title, members in strata.items():
        suffix = f"-{title.replace(', ', '-')}" if title else ""
        pairs = pairs_of[title]
        figures[f"attention{suffix}"] = plots.attention_beside_pairs(study, members, title, pairs)
        figures[f"bias{suffix}"] = plots.bias_against_exchange(study, members, title, pairs["exchange"])
    for target in study.targets:
        figures[f"moved-to-{target}"] = plots.moved_against_fresh(study, results, target)
    paths = []
    for name, figure in figures.items():
        if figure is not None:
            paths.append(folder / f"{name}.png")
            figure.savefig(paths[-1], dpi=90)
    sections = [
        _design(study, results, scopes["all"]),
        _ranks(study, results, ranks, scopes["all"]),
        *(_errors_by(study, results, axis) for axis in study.axes if axis != study.compare),
        _comparisons(study, comparisons, list(scopes)),
        _claims(study, comparisons),
        _agreement(study, strata, pairs_of),
        *(_moved(study, results, target) for target in study.targets),
    ]
    report = folder / "report.md"
    report.write_text("\n\n".join(sections) + "\n", encoding="utf-8")
    return [report, *paths]


def _pairs(cell: Cell) -> dict[str, Array]:
    return pair_matrices(prepare(cell.config, cell.rng_seed).module.hamiltonian.integrals)


def all_scopes(study: Study, results: Results) -> dict[str, Array]:
    """log10 errors over everything, and for each entry of each axis that is not compared (where there are several)."""
    scopes = {"all": log_errors(study, results)}
    for axis, entries in study.axes.items():
        if axis != study.compare and len(entries) > 1:
            scopes |= {name: log_errors(study, results, only={axis: name}) for name in entries}
    return scopes


def _design(study: Study, results: Results, values: Array) -> str:
    failed = [cell.label for cell, result in results if "failure" in result]
    steps = sorted({result["steps"] for _, result in results if "steps" in result})
    axes = "\n".join(f"- {axis}: {', '.join(entries)}" for axis, entries in study.axes.items())
    return "\n".join(
        [
            f"# {study.compare}: what the study found",
            "",
            f"{len(results)} of {len(study.cells())} cells, {values.shape[2]} complete seeds, {steps} steps each.",
            f"Failed: {len(failed)}{''.join(f'; {label}' for label in failed)}.",
            "",
            axes,
            "",
            f"Two seeds of one cell typically differ by a factor {seed_spread(values):.2f} in the error "
            "(one standard deviation of its logarithm).",
        ]
    )


def _ranks(study: Study, results: Results, ranks: list[Interval], values: Array) -> str:
    entries = list(study.axes[study.compare])
    lines = [
        "## Ranks over all strata and seeds",
        "",
        f"All alike? Friedman's test: P = {friedman_p(values):.2g}.",
        "",
        "| entry | mean rank | 95 % | geometric mean error / mHa | within 1.6 mHa | parameters | CPU ms a step |",
        "|---|---|---|---|---|---|---|",
    ]
    for index in np.argsort([rank.value for rank in ranks]):
        entry, rank = entries[index], ranks[index]
        mine = [r for cell, r in results if cell.entries[study.compare] == entry and "error_mha" in r]
        within = sum(r["steps_to_accuracy"] is not None for r in mine)
        parameters = sorted({r["parameters"] for r in mine})
        milliseconds = np.median([1e3 * r["cpu_s"] / r["steps"] for r in mine])
        lines.append(
            f"| {entry} | {rank.value:.2f} | {rank.low:.2f} … {rank.high:.2f} | {10 ** values[index].mean():.3f} | "
            f"{within}/{len(mine)} | {_range(parameters)} | {milliseconds:.0f} |"
        )
    return "\n".join(lines)


def _range(values: list[int]) -> str:
    return f"{values[0]:,}" if values[0] == values[-1] else f"{values[0]:,} … {values[-1]:,}"


def _errors_by(study: Study, results: Results, axis: str) -> str:
    columns = {name: log_errors(study, results, only={axis: name}) for name in study.axes[axis]}
    head = f"| entry | {' | '.join(columns)} |"
    lines = [f"## Error in mHa by {axis}", "", "Geometric mean (smallest … largest).", "", head]
    lines.append("|---" * (len(columns) + 1) + "|")
    for index, entry in enumerate(study.axes[study.compare]):
        texts = [
            f"{10 ** v[index].mean():.3f} ({10 ** v[index].min():.3f} … {10 ** v[index].max():.3f})"
            for v in columns.values()
        ]
        lines.append(f"| {entry} | {' | '.join(texts)} |")
    return "\n".join(lines)


def _comparisons(study: Study, comparisons: list[Comparison], scopes: list[str]) -> str:
    found: dict[tuple[str, str], Comparison] = {(c.entry, c.scope): c for c in comparisons}
    lines = [
        f"## Error divided by that of {study.baseline}",
        "",
        "Ratio of geometric means [95 % bootstrap interval over seeds]; bold where the sign-flip test, corrected after "
        "Holm for the comparisons of its column, is below 0.05.",
        "",
        f"| entry | {' | '.join(scopes)} |",
        "|---" * (len(scopes) + 1) + "|",
    ]
    for entry in study.axes[study.compare]:
        if entry != study.baseline:
            lines.append(f"| {entry} | {' | '.join(_cell_text(found[entry, scope]) for scope in scopes)} |")
    return "\n".join(lines)


def _cell_text(comparison: Comparison) -> str:
    ratio = comparison.ratio
    text = f"{ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"
    return text if comparison.verdict == "within noise" else f"**{text}**"


def _claims(study: Study, comparisons: list[Comparison]) -> str:
    lines = ["## Larger than the noise, and not"]
    for verdict in ("better", "worse"):
        claims = [
            f"- {c.entry} on {c.scope}: {c.ratio.value:.2f} times the error, P = {c.p_adjusted:.2g} ({c.n_pairs} pairs)"
            for c in comparisons
            if c.verdict == verdict
        ]
        lines += ["", f"{verdict.capitalize()} than {study.baseline} beyond noise:", "", *(claims or ["- nothing"])]
    silent: dict[str, list[str]] = {}
    for c in comparisons:
        if c.verdict == "within noise":
            silent.setdefault(c.entry, []).append(c.scope)
    lines += ["", f"Within noise of {study.baseline}:", ""]
    lines += [f"- {entry}: {', '.join(scopes)}" for entry, scopes in silent.items()] or ["- nothing"]
    return "\n".join(lines)


def _agreement(study: Study, strata: dict[str, Results], pairs_of: dict[str, dict[str, Array]]) -> str:
    """Whether attention and biases went where the integrals say that orbitals are coupled."""
    columns = {
        "attention, mutual information": (relative_attention, "mutual_information"),
        "attention, K_pq": (relative_attention, "exchange"),
        "bias, K_pq": (mean_bias, "exchange"),
    }
    lines = [
        "## Attention and bias beside the integrals",
        "",
        "Spearman's ρ over pairs of orbitals, of what the seeds of a stratum have on average: mean over strata "
        "(smallest … largest).",
        "",
        f"| entry | {' | '.join(columns)} |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for entry in study.axes[study.compare]:
        texts = []
        for read, name in columns.values():
            found = []
            for title, members in strata.items():
                mine = [r.get("inspection") for cell, r in members if cell.entries[study.compare] == entry]
                seen = read([inspection for inspection in mine if inspection])
                if seen is not None and name in pairs_of[title]:
                    found.append(rank_correlation(seen, pairs_of[title][name]))
            known = [value for value in found if np.isfinite(value)]
            texts.append(f"{np.mean(known):.2f} ({min(known):.2f} … {max(known):.2f})" if known else "—")
        lines.append(f"| {entry} | {' | '.join(texts)} |")
    return "\n".join(lines)


def _moved(study: Study, results: Results, target: str) -> str:
    """What parameters trained on the cells' systems are worth on a target."""
    entries = list(study.axes[study.compare])
    cubes = {name: log_errors(study, results, target_figure(target, f"{name}_mha")) for name in MOVED}
    comparisons = {
        (c.scope, c.entry): c
        for c in compare({name: cubes[name] for name in ("zero_shot", "moved")}, entries, study.baseline)
    }
    lines = [
        f"## Moved to {target}",
        "",
        "Geometric mean errors in mHa. Zero shot: with the loaded parameters as they are. Moved: after training on. "
        "Fresh start: after the supervised start, if there is one. Fresh: after the same training from there. Saved: "
        "how many of its steps the loaded parameters spare (median, and in how many cells they spare any). Ratios to "
        f"{study.baseline} [95 %], bold beyond noise.{_draws(results, target)}",
        "",
        f"| entry | {' | '.join(name.replace('_', ' ') for name in MOVED)} | saved | zero shot / {study.baseline} | "
        f"moved / {study.baseline} |",
        "|---" * (len(MOVED) + 4) + "|",
    ]
    for index, entry in enumerate(entries):
        errors = " | ".join(f"{10 ** cubes[name][index].mean():.2f}" for name in MOVED)
        ratios = [
            _cell_text(comparisons[scope, entry]) if entry != study.baseline else "1"
            for scope in ("zero_shot", "moved")
        ]
        lines.append(f"| {entry} | {errors} | {_saved(study, results, target, entry)} | {' | '.join(ratios)} |")
    return "\n".join(lines)


def _draws(results: Results, target: str) -> str:
    """Median error bars of energies that were sampled; nothing where they were summed."""
    texts = []
    for name in ("zero_shot", "moved", "fresh"):
        of = target_figure(target, f"{name}_error_bar_mha")
        bar = np.median([of(r) for _, r in results if "targets" in r])
        texts += [f"{bar:.2g} ({name.replace('_', ' ')})"] if bar > 0 else []
    return f" Energies are sampled; median error bars in mHa: {', '.join(texts)}." if texts else ""


def _saved(study: Study, results: Results, target: str, entry: str) -> str:
    mine = [r["targets"][target] for cell, r in results if cell.entries[study.compare] == entry and "targets" in r]
    saved = [t["steps_saved"] or 0 for t in mine]
    if not saved:
        return "—"
    return f"{np.median(saved):.0f} of {mine[0]['fresh']['steps']} ({sum(s > 0 for s in saved)}/{len(saved)})"
