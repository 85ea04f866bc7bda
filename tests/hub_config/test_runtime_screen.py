"""What the live screen says, from plain values."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import pytest
from rich.console import Console

from hub_config.screen import (
    event_line,
    events_text,
    gpus_text,
    idle_text,
    jobs_table,
    note,
    pauses_text,
    seconds_text,
    sessions_table,
)
from scheduler_bridge.model.phases import Desired, Kind, Phase
from scheduler_bridge.model.workload import (
    Event,
    FleetView,
    Gpu,
    Idleness,
    Lease,
    LeaseId,
    Node,
    Pause,
    Workload,
    WorkloadId,
    WorkloadSpec,
)

GPU = Gpu("VGPU-1", "local", 1, "virtual", "/x/vgpu1", virtual=True)
RUNNING = Workload(
    id=WorkloadId("w1"),
    key="session:hub/alice/",
    spec=WorkloadSpec(Kind.SESSION, name="alice", user="alice", gpus=1),
    phase=Phase.RUNNING,
    phase_since=1000.0,
    created_at=900.0,
    version=1,
    lease=Lease(LeaseId("l1"), WorkloadId("w1"), 1, "local", (GPU,), 900.0, 2000.0),
)
QUEUED = replace(
    RUNNING,
    id=WorkloadId("w2"),
    spec=WorkloadSpec(Kind.JOB, name="train", user="bob", gpus=1),
    phase=Phase.QUEUED,
    lease=None,
    position=1,
    wait_reason="all GPUs are taken",
)


def printed(renderable: object) -> str:
    console = Console(width=200)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


@pytest.mark.parametrize(
    ("idleness", "text"),
    [
        (Idleness(), "busy"),
        (Idleness(reason="no telemetry for 2m"), "no telemetry for 2m"),
        (Idleness(since=1050.0), "for 50s"),
        (Idleness(since=1050.0, suspend_at=1170.0), "for 50s, suspended in 1m10s"),
        (Idleness(since=1050.0, suspend_at=1090.0), "for 50s, suspended in 0s"),
    ],
)
def test_idle_sessions_count_down(idleness: Idleness, text: str) -> None:
    assert idle_text(replace(RUNNING, idleness=idleness), 1100.0) == text


def test_sessions_and_jobs_have_their_tables() -> None:
    sessions, jobs = (
        sessions_table((RUNNING, QUEUED), 1100.0),
        jobs_table((RUNNING, QUEUED), 1100.0),
    )
    assert "alice/default" in printed(sessions)
    assert "train" not in printed(sessions)
    assert "number 1: all GPUs are taken" in printed(jobs)
    assert "alice" not in printed(jobs)


def test_a_virtual_gpu_is_called_virtual_and_its_holder_named() -> None:
    node = Node("local", (GPU, replace(GPU, uuid="VGPU-2", index=2)))
    fleet = FleetView((node,), {"VGPU-1": "w1"}, queued=1)
    assert "[virtual 1: alice]  [virtual 2: free]" in gpus_text(fleet, (RUNNING,)).plain


def test_the_red_button_is_shown_until_it_expires() -> None:
    fleet = FleetView((), {}, 0, (Pause("reclaim", 1160.0, "a talk", "admin", 1000.0),))
    assert pauses_text(fleet, 1100.0).plain == "PAUSED: reclaim for another 1m00s by admin: a talk"
    assert pauses_text(fleet, 1160.0).plain == ""


def test_what_is_worth_saying_about_a_session() -> None:
    assert note(RUNNING) == ""
    leaving = replace(RUNNING, desired=Desired.SUSPENDED, desired_reason="idle for 2m")
    assert note(leaving) == "idle for 2m"
    assert note(replace(leaving, last_error="a GPU library")) == "a GPU library"


def test_an_event_is_one_line() -> None:
    event = Event(1, 0.0, "w1", "move", "idle", "reclaimer", "alice", "running", "suspending")
    assert event_line(event).endswith("alice w1  running → suspending  idle")
    assert events_text(deque([event, event])).plain.count("\n") == 1


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1, "0s"), (59.9, "59s"), (190, "3m10s"), (7500, "2h05m")]
)
def test_times_are_short(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text
