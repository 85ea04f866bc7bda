"""Figures, worked out by hand for small outcomes, and what people see of them."""

from __future__ import annotations

import builtins
import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from scheduler_bridge.simulator.contract import Decisions
from scheduler_bridge.simulator.fifo import Fifo
from scheduler_bridge.simulator.jobs import HOUR, Costs
from scheduler_bridge.simulator.plots import NoPlots, save_plots
from scheduler_bridge.simulator.report import Waits, figures, seconds
from scheduler_bridge.simulator.scenarios import Request, Result, UnknownName, simulate
from scheduler_bridge.simulator.tables import by_team, comparison
from scheduler_bridge.simulator.traces import TraceError
from tests.simulator.builders import job, play, scenario, scripted


def test_occupancy_counts_only_while_what_waits_could_fill_the_fleet() -> None:
    # 3 of 4 GPUs in use; who waits needs 2, so 1 free one is wanted: a backlog, from 10 to 100
    arrivals = [(0.0, job("a1", 3, 100)), (10.0, job("a2", 2, 100))]
    found = figures(play(scenario(arrivals, nodes=1), Fifo))
    assert found.occupancy == 0.75
    assert found.occupancy_offered == 0.75
    assert found.fragmentation == 0.25


def test_offered_is_less_than_everything_where_little_waits() -> None:
    _, make = scripted({0.0: Decisions((("a1", ((0, 4),)),))})
    arrivals = [(0.0, job("a1", 4, 100)), (0.0, job("a2", 1, 100))]
    found = figures(play(scenario(arrivals, until=100.0), make))
    assert found.occupancy == 1.0  # there was no backlog: 1 waits, 4 are free
    assert found.occupancy_offered == 0.8


def test_owed_and_worst_team() -> None:
    arrivals = [
        (0.0, job("a1", 8, 20 * HOUR, limit=30 * HOUR)),
        (0.0, job("b1", 4, 20 * HOUR, team="b")),
    ]
    found = figures(play(scenario(arrivals, nodes=1, gpus=8, until=40 * HOUR), Fifo))
    # b is owed 4 of 8 GPUs all the time and gets them in the second half only
    assert found.teams["a"].ratio == 2.0
    assert found.teams["b"].ratio == 0.5
    assert (found.worst_team, found.worst_team_name) == (0.5, "b")
    assert found.owed_delivered == pytest.approx((80 + 80) / (80 + 160), abs=1e-4)


def test_waits_of_who_never_started_count() -> None:
    arrivals = [(0.0, job("a1", 4, 1000)), (10.0, job("a2", 4, 10))]
    found = figures(play(scenario(arrivals, nodes=1, until=500.0), Fifo))
    assert found.wait == Waits(2, 245.0, 441.0, 465.5, 485.1, 490.0)
    assert found.unstarted == 1


def test_lost_work_and_preemptions() -> None:
    place = ((0, 4),)
    script = {
        0.0: Decisions((("a1", place),)),
        100.0: Decisions((), (("a1", "b1"),)),
        110.0: Decisions((("b1", place),)),
        200.0: Decisions((("a1", place),)),
    }
    _, make = scripted(script)
    jobs = [
        (0.0, job("a1", 4, 200, checkpoint_every=60.0)),
        (1.0, job("b1", 4, 90, team="b", min_runtime=900.0)),
    ]
    costs = Costs(grace=0, suspend=0, restore=20, start=0)
    outcome = play(scenario(jobs, nodes=1, costs=costs), make)
    found = figures(outcome)
    assert outcome.meter.busy_seconds == 4 * (100 + 90 + 20 + 140)
    assert found.lost_work == pytest.approx((40 + 20) / 350, abs=1e-5)
    assert (found.preemptions, found.preempted_most) == (1, 1)
    assert found.return_wait.max == 100.0
    assert found.room_wait.max == 10.0


@pytest.mark.parametrize(
    ("value", "text"), [(12.4, "12 s"), (270, "4.5 min"), (7560, "2.1 h"), (259_200, "3.0 d")]
)
def test_durations_are_readable(value: float, text: str) -> None:
    assert seconds(value) == text


def small(policy: str = "fifo", **more: Any) -> Result:
    return simulate(Request("philly-80x8", policy, days=0.2, **more))


def test_the_table_names_every_policy() -> None:
    found = [small("fifo").figures, small("borrow").figures]
    screen = Console(file=io.StringIO(), width=200)
    screen.print(comparison(found))
    screen.print(by_team(found))
    text = screen.file.getvalue()  # type: ignore[attr-defined]
    assert "fifo" in text and "borrow" in text and "vc-00" in text
    assert "lost work" in text


def test_plots_are_written(tmp_path: Path) -> None:
    files = save_plots([small()], tmp_path / "new")
    assert [file.name for file in files] == ["philly-80x8.png", "philly-80x8.svg"]
    assert all(file.stat().st_size > 10_000 for file in files)


def test_without_matplotlib_plots_say_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ModuleNotFoundError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(NoPlots, match="pip install matplotlib"):
        save_plots([small()], tmp_path)


@pytest.mark.parametrize(
    ("request_", "error", "said"),
    [
        (Request("ai3"), UnknownName, "no scenario ai3; there are ai2, philly-96x8"),
        (Request("ai2", "best"), UnknownName, "no policy best; there are hubernate, fifo"),
        (Request("trace"), TraceError, "needs the file"),
    ],
)
def test_wrong_names_are_refused(request_: Request, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        simulate(request_)


def test_the_same_request_gives_the_same_figures() -> None:
    one, other = small("fairshare"), small("fairshare")
    assert one.figures.wait == other.figures.wait
    assert one.figures.teams == other.figures.teams
