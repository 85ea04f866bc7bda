"""Pictures of several policies side by side. Needs matplotlib, which is not part of an installation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from scheduler_bridge.simulator.jobs import DAY
from scheduler_bridge.simulator.report import Figures
from scheduler_bridge.simulator.scenarios import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class NoPlots(Exception):
    """matplotlib is not installed. Says how to get it."""


def save_plots(results: Sequence[Result], folder: Path) -> list[Path]:
    """One picture per scenario as PNG and SVG. Gives the files. Raises `NoPlots`, `OSError`."""
    figure = _figure()
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for scenario in dict.fromkeys(result.figures.scenario for result in results):
        mine = [result for result in results if result.figures.scenario == scenario]
        drawn = _draw(figure(figsize=(11, 9), layout="constrained"), scenario, mine)
        for kind in ("png", "svg"):
            file = folder / f"{scenario}.{kind}"
            drawn.savefig(file)
            files.append(file)
    return files


def _figure() -> type[Figure]:
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise NoPlots(
            "Plots need matplotlib, which is not installed here. Leave --plots out, or install it "
            "into this environment: pip install matplotlib."
        ) from error
    return Figure


def _draw(figure: Figure, scenario: str, results: Sequence[Result]) -> Figure:
    figure.suptitle(scenario)
    occupancy, waits, debt, teams = figure.subplots(4, 1).ravel()
    for result in results:
        name, capacity = result.figures.policy, result.fleet.capacity
        days = [sample.at / DAY for sample in result.course]
        occupancy.plot(
            days, [sample.busy / capacity for sample in result.course], label=name, linewidth=0.8
        )
        debt.plot(days, [_missing(sample.owed, sample.delivered) for sample in result.course])
    occupancy.set(ylabel="GPUs in use", xlabel="day", ylim=(0, 1.02))
    occupancy.legend(ncols=len(results), loc="lower right")
    debt.set(ylabel="owed, not delivered\n(GPU-hours)", xlabel="day")
    _bars(waits, results, _WAITS, "seconds", log=True)
    _bars(teams, results, _teams(results), "delivered / owed", log=False)
    teams.axhline(0.95, color="black", linewidth=0.6)
    return figure


_Row = Callable[[Figures], float]

_WAITS: dict[str, _Row] = {
    "debug p90": lambda it: it.debug_wait.p90,
    "debug p99": lambda it: it.debug_wait.p99,
    "all median": lambda it: it.wait.median,
    "all p90": lambda it: it.wait.p90,
    "all p99": lambda it: it.wait.p99,
    "return p95": lambda it: it.return_wait.p95,
}


def _teams(results: Sequence[Result]) -> dict[str, _Row]:
    names = sorted({name for result in results for name in result.figures.teams})
    return {name: _ratio(name) for name in names}


def _ratio(team: str) -> _Row:
    return lambda figures: figures.teams[team].ratio


def _missing(owed: Mapping[str, float], delivered: Mapping[str, float]) -> float:
    return sum(max(0.0, owed[name] - delivered.get(name, 0.0)) for name in owed) / 3600


def _bars(
    axes: Axes, results: Sequence[Result], rows: dict[str, _Row], label: str, *, log: bool
) -> None:
    width = 0.8 / len(results)
    for number, result in enumerate(results):
        places = [place + number * width for place in range(len(rows))]
        axes.bar(places, [max(1e-3, row(result.figures)) for row in rows.values()], width)
    axes.set_xticks([place + 0.4 - width / 2 for place in range(len(rows))], list(rows))
    axes.set_ylabel(label)
    if log:
        axes.set_yscale("log")
        axes.set_ylim(bottom=1)
