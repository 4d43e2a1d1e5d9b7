"""The page, the plots and the screen table of the molecule benchmark."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.table import Table

Result = dict[str, Any]

FLOOR_MHA = 1e-4
"""Smaller errors are drawn here."""
OURS = {"network": "network", "subspace": "subspace"}
"""Keys of the energies that the tables give, and their names there."""
CORRECTED = {"second_order": "with EN2", "zero_variance": "no variance", "zero_correction": "no correction"}

ABOUT = """# Molecules with the shipped configurations

`python benchmarks/molecules.py` wrote this page from the cells that are finished; settings of each system are in
`benchmarks/molecules.yaml`. Errors are in mHa above the exact energy (below it where negative), the median over seeds
with the worst one in brackets.

Mind what a run starts from: CISD with its first-order tail, or selected CI with one (`pretraining.target` of each
configuration). In sectors of a few hundred determinants such a start is close to the exact state by itself, and the
table tells that the network holds and refines it; what it finds without is the subject of `benchmarks/optimisers.py`.

- *network*: the network's own energy, ⟨ψ|H|ψ⟩ with every connected determinant, by `validate`.
- *subspace*: the lowest eigenvalue of H in the sampled set; variational.
- *correlation*: share of E(HF) − E(exact) that the network's energy recovers.
- *CPU s*: one thread, from the set-up of the run to the end of training, supervised start included; imports, integrals,
  reference energies, compilation of kernels and `validate` not. *to 1.6 mHa*: until a step's energy (the Rayleigh
  quotient within its sample, never too low) is that close.
- *determinants*: size of the sampled set that `validate` drew. *steps* in italics were cut by the limit of
  {limit:g} minutes.
"""


def by_name(results: list[Result], group: str) -> dict[str, list[Result]]:
    """Seeds of each system of a group, in the order of the results."""
    found: dict[str, list[Result]] = {}
    for result in results:
        if result["group"] == group:
            found.setdefault(result["name"], []).append(result)
    return found


def errors(seeds: list[Result], key: str) -> list[float]:
    """Errors of an energy in mHa, one for each seed that has it."""
    return [1e3 * (r["energies"][key] - r["exact"]) for r in seeds if key in r["energies"] and r["exact"] is not None]


def spread(values: list[float]) -> str:
    """Median, and in brackets the value that is farthest from zero."""
    if not values:
        return "–"
    median = f"{statistics.median(values):+.3f}"
    return median if len(values) == 1 else f"{median} ({max(values, key=abs):+.3f})"


def reference(seeds: list[Result], method: str) -> str:
    """Error of an established method."""
    first = seeds[0]
    if first[method] is None or first["exact"] is None:
        return "–"
    return f"{1e3 * (first[method] - first['exact']):+.3f}"


def times(seeds: list[Result]) -> str:
    """Median CPU seconds to chemical accuracy, and how many seeds did not get there."""
    reached = [r["cpu_s_to_accuracy"] for r in seeds if r["cpu_s_to_accuracy"] is not None]
    if not reached:
        return "–"
    missing = len(seeds) - len(reached)
    return f"{statistics.median(reached):.1f}" + (f" ({missing} not)" if missing else "")


def correlation(seeds: list[Result]) -> str:
    """Share of the correlation energy in the network's energy."""
    first = seeds[0]
    if first["hf"] is None or first["exact"] is None or first["hf"] - first["exact"] < 1e-9:
        return "–"
    shares = [(first["hf"] - r["energies"]["network"]) / (first["hf"] - first["exact"]) for r in seeds]
    return f"{100 * statistics.median(shares):.2f}%"


def median(seeds: list[Result], key: str, form: str = ",.0f") -> str:
    return format(statistics.median(r[key] for r in seeds), form)


def steps(seeds: list[Result]) -> str:
    text = median(seeds, "steps")
    return f"*{text}*" if any(r["steps"] < r["max_steps"] for r in seeds) else text


def cells_of(seeds: list[Result], label: str) -> dict[str, str]:
    """One row of a table, by heading."""
    first = seeds[0]
    return {
        "system": label,
        "qubits": str(2 * first["n_orb"]),
        "electrons": str(first["n_alpha"] + first["n_beta"]),
        "CCSD": reference(seeds, "ccsd"),
        "CCSD(T)": reference(seeds, "ccsd_t"),
        **{name: spread(errors(seeds, key)) for key, name in OURS.items()},
        "correlation": correlation(seeds),
        "⟨S²⟩": median(seeds, "s2", ".4f"),
        "steps": steps(seeds),
        "CPU s": median(seeds, "cpu_s"),
        "to 1.6 mHa": times(seeds),
        "determinants": median(seeds, "set_size"),
        "parameters": median(seeds, "parameters"),
        "seeds": str(len(seeds)),
    }


def markdown(rows: list[dict[str, str]]) -> str:
    headings = list(rows[0])
    rule = ["---", *["--:"] * (len(headings) - 1)]
    lines = [headings, rule, *(list(row.values()) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def screen_table(results: list[Result]) -> Table:
    """Every system in a rich table."""
    groups = [by_name(results, group) for group in ("molecules", "fcidumps", "curve")]
    rows = [cells_of(seeds, name) for group in groups for name, seeds in group.items()]
    return rich_table("Error in mHa, median (worst) over seeds", rows)


def rich_table(title: str, rows: list[dict[str, str]]) -> Table:
    """Rows by heading, as :func:`markdown` takes them, for the screen."""
    table = Table(title=title)
    for i, heading in enumerate(rows[0] if rows else ()):
        table.add_column(heading, justify="right" if i else "left")
    for row in rows:
        table.add_row(*row.values())
    return table


def write_report(
    folder: Path, results: list[Result], missing: list[str], skipped: dict[str, str], limit: float
) -> None:
    """``molecules.md``, ``molecules-errors.png`` and ``molecules-n2.png``."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = [ABOUT.format(limit=limit)]
    molecules, fcidumps, curve = (by_name(results, group) for group in ("molecules", "fcidumps", "curve"))
    if molecules:
        parts += ["## Molecules\n", markdown([cells_of(seeds, name) for name, seeds in molecules.items()])]
        error_plot({**molecules, **fcidumps}).savefig(folder / "molecules-errors.png", dpi=130)
        parts += ["![errors of every molecule beside coupled cluster](molecules-errors.png)\n"]
    if fcidumps:
        parts += ["## FCIDUMP files\n", markdown([_fcidump_row(seeds, name) for name, seeds in fcidumps.items()])]
        parts += [
            "*with EN2*, *no variance*, *no correction*: Epstein–Nesbet correction to the subspace energy and the two "
            "extrapolations of `validate`; not variational.\n"
        ]
    if curve:
        points = sorted(curve.values(), key=lambda seeds: seeds[0]["bond"])
        rows = [{"bond / Å": f"{seeds[0]['bond']:g}", **_without_system(seeds)} for seeds in points]
        parts += ["## Stretched N2, each point started from the one before\n", markdown(rows)]
        curve_plot(points).savefig(folder / "molecules-n2.png", dpi=130)
        parts += ["![N2 curve](molecules-n2.png)\n"]
    parts += ["## What this is from\n", _provenance(results, missing, skipped)]
    (folder / "molecules.md").write_text("\n".join(parts), encoding="utf-8")


def _fcidump_row(seeds: list[Result], name: str) -> dict[str, str]:
    row = cells_of(seeds, name)
    corrected = {label: spread(errors(seeds, key)) for key, label in CORRECTED.items()}
    head = {key: row.pop(key) for key in ("system", "qubits", "electrons")}
    return {**head, "exact": f"{seeds[0]['exact']:.6f} ({seeds[0]['exact_by']})", **row, **corrected}


def _without_system(seeds: list[Result]) -> dict[str, str]:
    row = cells_of(seeds, "")
    return {key: value for key, value in row.items() if key not in ("system", "qubits", "electrons")}


def _provenance(results: list[Result], missing: list[str], skipped: dict[str, str]) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in results[-1]["versions"].items())
    lines = [f"{len(results)} cells; {versions}.\n"]
    disagreeing = sorted(
        r["name"] for r in results if r["fci_here"] is not None and abs(r["fci_here"] - r["exact"]) > 1e-5
    )
    if disagreeing:
        lines.append(
            f"PySCF's FCI here differs by over 0.01 mHa from the tabulated energy: {', '.join(disagreeing)}.\n"
        )
    if missing:
        lines.append(f"Not finished: {', '.join(missing)}.\n")
    lines += [f"Skipped: {name}, {reason}.\n" for name, reason in skipped.items()]
    return "\n".join(lines)


def _drawn(values: list[float]) -> list[float]:
    return [max(abs(value), FLOOR_MHA) for value in values]


def error_plot(systems: dict[str, list[Result]]) -> Figure:
    """|error| of every system on a logarithmic scale: ours with the range over seeds, coupled cluster beside it."""
    systems = {name: seeds for name, seeds in systems.items() if seeds[0]["exact"] is not None}
    figure = Figure(figsize=(max(6.0, 0.42 * len(systems) + 2), 4.8), layout="constrained")
    axes = figure.subplots()
    places = range(len(systems))
    for shift, (key, label) in zip((-0.12, 0.12), OURS.items(), strict=True):
        for place, seeds in zip(places, systems.values(), strict=True):
            drawn = _drawn(errors(seeds, key))
            if drawn:
                colour = "tab:blue" if key == "network" else "tab:green"
                axes.plot([place + shift] * 2, [min(drawn), max(drawn)], color=colour, linewidth=1)
                axes.plot(
                    place + shift, statistics.median(drawn), "o", color=colour, label=label if not place else None
                )
    for method, label, marker in (("ccsd", "CCSD", "x"), ("ccsd_t", "CCSD(T)", "+")):
        points = [
            (place, _drawn([1e3 * (seeds[0][method] - seeds[0]["exact"])])[0])
            for place, seeds in zip(places, systems.values(), strict=True)
            if seeds[0][method] is not None
        ]
        axes.plot(*zip(*points, strict=True), marker, color="tab:red", label=label) if points else None
    for bound, name in ((1.6, "chemical accuracy"), (0.1, "0.1 mHa")):
        axes.axhline(bound, color="grey", linestyle=":")
        axes.annotate(name, (len(systems) - 0.5, bound), fontsize=7, ha="right", va="bottom")
    axes.set_yscale("log")
    axes.set_xticks(list(places), list(systems), rotation=60, ha="right", fontsize=8)
    axes.set_ylabel("|E − exact| / mHa")
    figure.legend(loc="outside upper center", ncols=4, fontsize=8)
    return figure


def curve_plot(points: list[list[Result]]) -> Figure:
    """Energies along the bond above, |errors| below."""
    figure = Figure(figsize=(7, 6.5), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True)
    bonds = [seeds[0]["bond"] for seeds in points]
    for method, label, style in (("ccsd", "CCSD", "x--"), ("ccsd_t", "CCSD(T)", "+-.")):
        known = [(b, s[0][method], s[0]["exact"]) for b, s in zip(bonds, points, strict=True) if s[0][method]]
        if known:
            top.plot([b for b, *_ in known], [energy for _, energy, _ in known], style, label=label)
            bottom.semilogy(
                [b for b, *_ in known], _drawn([1e3 * (energy - exact) for _, energy, exact in known]), style
            )
    top.plot(bonds, [seeds[0]["exact"] for seeds in points], "k-", label="FCI")
    for key, label in OURS.items():
        middle = [statistics.median(r["energies"][key] for r in seeds) for seeds in points]
        line = top.plot(bonds, middle, "o", label=label, markersize=4)[0]
        bottom.semilogy(
            bonds, [statistics.median(_drawn(errors(s, key))) for s in points], "o-", color=line.get_color()
        )
    bottom.axhline(0.5, color="grey", linestyle=":")
    bottom.annotate("0.5 mHa", (bonds[-1], 0.5), fontsize=7, ha="right", va="bottom")
    top.set_ylabel("energy / Ha")
    bottom.set_ylabel("|E − FCI| / mHa")
    bottom.set_xlabel("bond / Å")
    top.legend()
    return figure
