"""Several policies side by side, for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from scheduler_bridge.simulator.report import HEADLINES, Figures


def comparison(found: Sequence[Figures]) -> Table:
    """One column per policy, all of one scenario."""
    table = Table(title=_title(found[0]), title_justify="left", box=None, pad_edge=False)
    table.add_column("", style="bold")
    for each in found:
        table.add_column(each.policy, justify="right")
    for name, text in HEADLINES.items():
        table.add_row(name, *(text(each) for each in found))
    return table


def by_team(found: Sequence[Figures]) -> Table:
    """Owed GPU-hours, and what was delivered of them under each policy."""
    table = Table(title="Owed against delivered", title_justify="left", box=None, pad_edge=False)
    table.add_column("team", style="bold")
    for each in found:
        table.add_column(f"{each.policy}: owed", justify="right")
        table.add_column("delivered", justify="right")
    for team in sorted({name for each in found for name in each.teams}):
        cells = []
        for each in found:
            mine = each.teams.get(team)
            cells += ["", ""] if mine is None else [f"{mine.owed:,.0f} h", f"{mine.ratio:.1%}"]
        table.add_row(team, *cells)
    return table


def _title(first: Figures) -> str:
    return f"{first.scenario}: {first.days:.0f} days"
