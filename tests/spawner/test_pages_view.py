"""What the home page says, and which buttons it offers."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from scheduler_bridge.model.phases import Desired, Kind, Phase
from scheduler_bridge.model.workload import (
    Expiry,
    FleetView,
    Forecast,
    Idleness,
    Pause,
    SnapshotRef,
    Workload,
    WorkloadId,
    WorkloadSpec,
)
from spawner.hosting import Seen
from spawner.options import capacity_of
from spawner.pages import SessionsHandler
from spawner.pages_view import Server, is_left_alone, page, pause_sentences, resume_when, row
from spawner.supervisor.status import Status
from tests.spawner.test_options import fleet

NOW = 1000.0
SHOT = SnapshotRef("m", 1, 1, bytes=2_000, stored_bytes=500, created_at=400.0)
READY = Server("/user/ada/", is_ready=True)


def session(phase: Phase, *, gpus: int = 1, server: str = "", **more: Any) -> Workload:
    spec = WorkloadSpec(Kind.SESSION, "ada", "ada", server=server, gpus=gpus, profile="p")
    return Workload(WorkloadId("w"), "k", spec, phase, 900.0, 0.0, 1, **more)


def shown(workload: Workload, server: Server = READY, view: FleetView | None = None) -> Any:
    return row(workload, server, Seen(), view or fleet(2), now=NOW)


@pytest.mark.parametrize(
    ("phase", "server", "actions"),
    [
        (Phase.QUEUED, Server("", False), ("cancel",)),
        (Phase.QUEUED, Server("", False, "spawn"), ("cancel",)),
        (Phase.STARTING, Server("", False, "spawn"), ("cancel",)),
        (Phase.RUNNING, READY, ("suspend", "stop")),
        (Phase.RUNNING, Server("", False), ("open", "suspend", "stop")),
        (Phase.RUNNING, Server("", False, "stop"), ()),
        (Phase.SUSPENDING, READY, ()),
        (Phase.SUSPENDED, Server("", False), ("resume", "fork", "fresh", "discard")),
        (Phase.SUSPENDED, Server("", False, "spawn"), ()),
    ],
)
def test_the_buttons(phase: Phase, server: Server, actions: tuple[str, ...]) -> None:
    assert shown(session(phase), server).actions == actions


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        ({}, "Your server is running; its memory is still arriving."),
        ({"filling": {}}, "Your server is running; its memory is still arriving."),
        (
            {"filling": {"remaining": 0, "total": 0, "trouble": ""}},
            "Your server is running; its memory is still arriving.",
        ),
        (
            {"filling": {"remaining": 3701, "total": 10_000, "trouble": ""}},
            "Your server is running; its memory is still arriving (62 %).",
        ),
    ],
)
def test_a_session_whose_memory_arrives_says_how_much_is_there(facts: Any, sentence: str) -> None:
    seen = Seen(Status("w", "filling", facts=facts))
    made = row(session(Phase.FILLING), READY, seen, fleet(1), now=NOW)
    assert (made.sentence, made.error, made.remedy) == (sentence, "", "")
    # what a status said before its session ran says nothing any more
    after = row(session(Phase.RUNNING), READY, seen, fleet(1), now=NOW)
    assert after.sentence == "Your server is running."


def test_memory_that_does_not_come_is_said_with_the_reason() -> None:
    facts = {"filling": {"remaining": 5, "total": 10, "trouble": "the store does not answer."}}
    seen = Seen(Status("w", "filling", facts=facts))
    made = row(session(Phase.FILLING), READY, seen, fleet(1), now=NOW)
    assert made.sentence.endswith("(50 %).")
    assert made.error == "No more of its memory comes: the store does not answer."
    assert "nothing is lost" in made.remedy


DAY = 86400.0


def suspended_until(days: float, **more: Any) -> Workload:
    expiry = Expiry("m", NOW + days * DAY, "strict", "suspended for 30 days", **more)
    return session(Phase.SUSPENDED, snapshot=SHOT, expiry=expiry)


def test_a_suspended_session_tells_until_when_it_is_kept_and_why() -> None:
    later = shown(suspended_until(20))
    assert later.kept_until == (
        "Kept until 1970-01-21 00:16 UTC (suspended for 30 days; rule strict)."
    )
    assert not later.goes_soon
    soon = shown(suspended_until(6.5))
    assert soon.goes_soon
    assert soon.kept_until.startswith("Its memory is deleted in 6 days, on 1970-01-07")
    assert "Resume it to keep it" in soon.kept_until
    assert "deleted in 12 h" in shown(suspended_until(0.5)).kept_until


def test_what_is_not_suspended_as_that_snapshot_has_no_date() -> None:
    expiry = Expiry("m", NOW + DAY, "strict", "because")
    for workload in (
        session(Phase.SUSPENDED, snapshot=SHOT),
        session(Phase.RESUMING, snapshot=SHOT, expiry=expiry),
        session(Phase.SUSPENDED, snapshot=SHOT, expiry=dataclasses.replace(expiry, snapshot="x")),
    ):
        assert (shown(workload).kept_until, shown(workload).goes_soon) == ("", False)


def test_a_suspended_session_tells_its_size_and_age() -> None:
    made = shown(session(Phase.SUSPENDED, snapshot=SHOT))
    assert (made.memory_bytes, made.stored_bytes) == (2_000, 500)
    assert (made.snapshot_age_seconds, made.age_seconds) == (600.0, 100.0)
    assert "your work is safe" in made.sentence


def test_a_live_session_that_the_hub_does_not_know_says_so() -> None:
    assert not shown(session(Phase.RUNNING), Server("", False)).is_connected
    assert shown(session(Phase.SUSPENDED), Server("", False)).is_connected


@pytest.mark.parametrize(
    ("phase", "desired", "is_active", "expected"),
    [
        (Phase.RUNNING, Desired.RUNNING, False, True),
        (Phase.RUNNING, Desired.RUNNING, True, False),
        (Phase.RUNNING, Desired.SUSPENDED, False, False),
        (Phase.RUNNING, Desired.STOPPED, False, False),
        (Phase.SUSPENDING, Desired.RUNNING, False, False),
        (Phase.STARTING, Desired.RUNNING, False, False),
    ],
)
def test_only_a_session_that_is_to_run_is_brought_back_by_looking(
    phase: Phase, desired: Desired, is_active: bool, expected: bool
) -> None:
    workload = session(phase, desired=desired)
    assert is_left_alone(workload, is_active) is expected
    spawner = SpawnerThatCountsRejoins(workload.key, is_active)
    SessionsHandler._row(spawner.as_handler(), workload, fleet(2), NOW)  # type: ignore[arg-type]
    assert spawner.rejoins == int(expected)


class SpawnerThatCountsRejoins:
    """The Hub's side of one server, as far as the home page looks at it."""

    ready, pending, host = False, None, property(lambda self: self)

    def __init__(self, key: str, active: bool) -> None:
        self.key, self.active, self.rejoins = key, active, 0

    def observe(self, _workload_id: str) -> Seen:
        return Seen()

    def rejoin_soon(self) -> None:
        self.rejoins += 1

    def as_handler(self) -> SimpleNamespace:
        user = SimpleNamespace(spawners={"": self}, server_url=lambda name: f"/user/ada/{name}")
        return SimpleNamespace(current_user=user)


def test_the_countdown_of_an_idle_session() -> None:
    idle = Idleness(since=940.0, suspend_at=1030.0, reason="no cell runs")
    made = shown(session(Phase.RUNNING, idleness=idle))
    assert (made.idle_seconds, made.suspend_in_seconds) == (60.0, 30.0)
    assert made.idle_reason == "no cell runs"
    assert shown(session(Phase.SUSPENDED, idleness=idle)).suspend_in_seconds is None
    late = dataclasses.replace(idle, suspend_at=990.0)
    assert shown(session(Phase.RUNNING, idleness=late)).suspend_in_seconds == 0.0


@pytest.mark.parametrize(
    ("gpus", "view", "sentence"),
    [
        (0, fleet(), "Resumes now."),
        (1, fleet(2, taken=1), "Resumes now: 1 of 2 virtual GPUs free."),
        (1, fleet(2, taken=2), "Resumes as soon as 1 GPU is free: 0 of 2 virtual GPUs free."),
        (
            2,
            fleet(2, queued=3),
            "Resumes as soon as 2 GPUs are free: 2 of 2 virtual GPUs free and 3 waiting.",
        ),
    ],
)
def test_resume_says_now_or_when(gpus: int, view: FleetView, sentence: str) -> None:
    workload = session(Phase.SUSPENDED, gpus=gpus)
    assert resume_when(workload, capacity_of(view)) == sentence
    assert shown(workload, view=view).resume_now == sentence.startswith("Resumes now")


NEVER = Forecast(False, False, "no_node_fits", "It needs more.", "Start fresh.")
FORECASTS = [
    (0, Forecast(True), "Resumes now."),
    (1, Forecast(True), "Resumes now: 2 of 2 virtual GPUs free."),
    (1, Forecast(False, reason="no_free_gpus", text="It needs 1 GPU."),
     "Resumes as soon as 1 GPU is free: 2 of 2 virtual GPUs free."),
    (1, Forecast(False, reason="fitting_node", text="It waits for n1.", remedy="Wait."),
     "Does not resume now. It waits for n1. Wait."),
    (0, NEVER, "Cannot be resumed. It needs more. Start fresh."),
]  # fmt: skip


@pytest.mark.parametrize(("gpus", "forecast", "sentence"), FORECASTS)
def test_the_scheduler_knows_better_than_counting(
    gpus: int, forecast: Forecast, sentence: str
) -> None:
    workload = session(Phase.SUSPENDED, gpus=gpus)
    made = row(workload, READY, Seen(), fleet(2), now=NOW, forecast=forecast)
    assert (made.resume_when, made.resume_now) == (sentence, forecast.now)
    assert ("resume" in made.actions) is (forecast is not NEVER)
    assert {"fresh", "discard"} <= set(made.actions)


def test_with_nobody_to_ask_resume_promises_nothing() -> None:
    assert "unknown" in resume_when(session(Phase.SUSPENDED), None)


def test_a_queued_one_tells_place_and_reason() -> None:
    made = shown(session(Phase.QUEUED, server="exp", position=3, wait_reason="All GPUs are used."))
    assert made.sentence == "Server “exp” waits as number 3. All GPUs are used."


def test_a_suspend_that_is_wanted_but_has_not_begun() -> None:
    made = shown(session(Phase.RUNNING, desired=Desired.SUSPENDED))
    assert "about to be suspended" in made.sentence


def test_notes_and_errors_come_with_a_remedy() -> None:
    status = Status("w", "running", error="A socket is open.", remedy="Close it.", notes=("n",))
    made = row(session(Phase.RUNNING), READY, Seen(status), fleet(1), now=NOW)
    assert (made.error, made.remedy, made.notes) == ("A socket is open.", "Close it.", ("n",))
    older = session(Phase.SUSPENDED, last_error="Store was full.", remedy="Ask.")
    assert shown(older).error == "Store was full."


def test_pauses_in_force_are_shown_and_others_are_not() -> None:
    pauses = (
        Pause("reclaim", NOW + 600, "exam", "root", 0.0),
        Pause("all", NOW - 1, "old", "root", 0.0),
    )
    assert pause_sentences(pauses, now=NOW) == [
        "Suspending idle sessions is paused for 10 min more by root: exam"
    ]


def test_an_outage_is_said_and_worries_nobody() -> None:
    told = page([], None, now=NOW, is_scheduler_up=False)
    assert told["scheduler"] is False and "safe" in told["message"]
