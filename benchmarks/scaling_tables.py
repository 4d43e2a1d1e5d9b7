"""Tables of ``benchmarks/scaling.py``."""

from __future__ import annotations

from typing import Any

from rich.table import Table

SHOWN = ("sample", "local_energy", "direction", "backward", "optimizer", "gather")
EFFICIENCIES = ("weak", "ceiling", "same work", "strong")
"""n a rank over n alone; that of two unconnected processes; 2 n shared over 2 n alone; n shared over n alone."""
BYTES = ("sample", "local_energy", "direction", "optimizer")


def columns(table: Table, *headings: str) -> Table:
    for i, heading in enumerate(headings):
        table.add_column(heading, justify="right" if i else "left")
    return table


def scaling_table(name: str, rows: dict[str, Any]) -> Table:
    """Phases of every kind of step, and what became of the second core."""
    kinds = rows["kinds"]
    n, both = kinds["single"]["unique"][0], sum(kinds["weak"]["unique"])
    weak = kinds["weak"]
    table = Table(
        title=f"{name}: n = {n:,} determinants on one rank, {both:,} on two, {rows['parameters']:,} parameters; ms",
        caption=f"weak: imbalance {weak['imbalance_unique']:.3f} in determinants, {weak['imbalance_time']:.3f} in "
        f"time; {sum(weak['bytes'].values()) / 1e6:.2f} MB and {weak['collectives']} collectives a step",
    )
    columns(table, "phase", *kinds, *EFFICIENCIES, *(f"{name}, CPU" for name in EFFICIENCIES))
    for phase in (*SHOWN, "step"):
        wall, cpu = ({kind: of[clock].get(phase, 0.0) for kind, of in kinds.items()} for clock in ("seconds", "cpu"))
        shares = [f"{x:.0%}" for clock in (wall, cpu) for x in efficiencies(clock)] if phase != "gather" else []
        table.add_row(phase, *(f"{1e3 * value:.1f}" for value in wall.values()), *shares)
    return table


def efficiencies(seconds: dict[str, float]) -> list[float]:
    """As in ``EFFICIENCIES``."""
    single, weak = seconds["single"], seconds["weak"]
    return [single / weak, single / seconds["beside"], seconds["whole"] / weak / 2, single / seconds["strong"] / 2]


def strategy_table(rows: dict[str, dict[str, float]]) -> Table:
    phases = list(rows["ddp"])
    table = columns(Table(title="Strategies on 2 ranks, N2: ms per step, as logged by the run"), "strategy", *phases)
    columns_after = ("step", "over DDP")
    for heading in columns_after:
        table.add_column(heading, justify="right")
    whole = {strategy: sum(seconds.values()) for strategy, seconds in rows.items()}
    for strategy, seconds in rows.items():
        figures = [f"{1e3 * seconds[phase]:.1f}" for phase in phases]
        table.add_row(strategy, *figures, f"{1e3 * whole[strategy]:.1f}", f"{whole[strategy] / whole['ddp']:.2f}")
    return table


def traffic_table(rows: dict[str, Any]) -> Table:
    table = columns(
        Table(title="kB that a rank receives in a step; nothing on one rank"),
        "system", "ranks", "determinants", "sample", "local energy", "direction", "gradient", "B per determinant",
    )  # fmt: skip
    for name, by_ranks in rows.items():
        for ranks, kinds in by_ranks.items():
            for figures in kinds.values():
                kilobytes = [figures["bytes"][phase] / 1e3 for phase in BYTES]
                own = 1e3 * sum(kilobytes[:3]) / figures["unique"]
                table.add_row(
                    name, ranks, f"{figures['unique']:,}", *(f"{value:,.1f}" for value in kilobytes), f"{own:,.0f}"
                )
    return table
