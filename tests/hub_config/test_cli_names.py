"""Names, timelines and other pure parts of the command line."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub_config.commands.errors import CommandError
from hub_config.commands.names import display_name, resolve
from hub_config.commands.output import size
from hub_config.commands.timeline import time_in_phases, timeline
from scheduler_bridge.model.phases import Kind, Phase
from scheduler_bridge.model.workload import Event, Workload, WorkloadId, WorkloadSpec


def workload(id: str, kind: Kind, user: str, name: str = "", **changes: Any) -> Workload:
    spec = WorkloadSpec(kind, name, user, server=name if kind is Kind.SESSION else "")
    key = f"{kind}:hub/{user}/{name}"
    plain = Workload(WorkloadId(id), key, spec, Phase.RUNNING, 1.0, 1.0, 1)
    return replace(plain, **changes)


def session(id: str, user: str, server: str = "", **changes: Any) -> Workload:
    return workload(id, Kind.SESSION, user, server, **changes)


def job(id: str, user: str, name: str, **changes: Any) -> Workload:
    return workload(id, Kind.JOB, user, name, **changes)


ENDED = {"phase": Phase.FAILED}

FOUND = [
    ("a user with one session", "ada", [session("s-1", "ada"), session("s-2", "bob")], "s-1"),
    (
        "the default server among several",
        "ada/",
        [session("s-1", "ada"), session("s-2", "ada", "x")],
        "s-1",
    ),
    ("a named server", "ada/x", [session("s-1", "ada"), session("s-2", "ada", "x")], "s-2"),
    ("an id", "s-2", [session("s-1", "ada"), session("s-2", "bob")], "s-2"),
    ("the beginning of an id", "s-2f", [session("s-1a", "ada"), session("s-2f9", "bob")], "s-2f9"),
    ("a job's name", "train", [job("j-1", "ada", "train"), session("s-1", "ada")], "j-1"),
    (
        "a job's name with its user",
        "bob/train",
        [job("j-1", "ada", "train"), job("j-2", "bob", "train")],
        "j-2",
    ),
    (
        "a living one before one that ended",
        "train",
        [job("j-1", "ada", "train", **ENDED), job("j-2", "ada", "train")],
        "j-2",
    ),
    (
        "the latest of those that ended",
        "train",
        [job("j-1", "ada", "train", **ENDED), job("j-2", "ada", "train", created_at=9.0, **ENDED)],
        "j-2",
    ),
    (
        "an exact name before the beginning of an id",
        "j-1",
        [job("j-1", "ada", "a"), job("j-12", "ada", "b")],
        "j-1",
    ),
    (
        "the scheduler's key",
        "session:hub/ada/",
        [session("s-1", "ada"), session("s-2", "ada", "x")],
        "s-1",
    ),
]


@pytest.mark.parametrize(("sentence", "name", "workloads", "id"), FOUND, ids=[r[0] for r in FOUND])
def test_resolve(sentence: str, name: str, workloads: list[Workload], id: str) -> None:
    assert resolve(name, workloads).id == id


NOT_FOUND = [
    (
        "two sessions of a user",
        "ada",
        [session("s-1", "ada"), session("s-2", "ada", "x")],
        "can mean 2 things: session ada/ (s-1), session ada/x (s-2)",
    ),
    (
        "a user and a job of one name",
        "ada",
        [session("s-1", "ada"), job("j-1", "bob", "ada")],
        "session ada/ (s-1), job bob/ada (j-1)",
    ),
    (
        "two jobs that live",
        "train",
        [job("j-1", "ada", "train"), job("j-2", "ada", "train")],
        "2 things",
    ),
    ("nothing at all", "ada", [], "there is no ada"),
    ("too short to be the beginning of an id", "s-", [session("s-1", "ada")], "there is no s-"),
    ("two beginnings", "s-1", [session("s-1a", "ada"), session("s-1b", "bob")], "2 things"),
]


@pytest.mark.parametrize(
    ("sentence", "name", "workloads", "words"), NOT_FOUND, ids=[r[0] for r in NOT_FOUND]
)
def test_not_resolved(sentence: str, name: str, workloads: list[Workload], words: str) -> None:
    with pytest.raises(CommandError) as caught:
        resolve(name, workloads)
    assert words in str(caught.value)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["", "x", "y"])), unique=True))
def test_a_listed_name_is_never_taken_for_another_session(servers: list[tuple[str, str]]) -> None:
    workloads = [session(f"s-{n}", user, server) for n, (user, server) in enumerate(servers)]
    for one in workloads:
        name = display_name(one)
        try:
            assert resolve(name, workloads) is one
        except CommandError as error:
            assert one.id in str(error)
        assert resolve(f"{one.spec.user}/{one.spec.server}", workloads) is one


def event(id: int, at: float, kind: str, source: str = "", target: str = "") -> Event:
    return Event(id, at, "w-1", kind, cause="because", actor="ada", source=source, target=target)


HISTORY = [
    event(1, 100.0, "submitted", target="queued"),
    event(2, 103.5, "phase", "queued", "starting"),
    event(3, 104.0, "lease_taken"),
    event(4, 110.0, "phase", "starting", "running"),
    event(5, 200.0, "desired", "running", "suspended"),
    event(6, 201.0, "phase", "running", "suspending"),
    event(7, 203.0, "phase", "suspending", "running"),
]


def test_a_timeline_says_how_long_each_phase_lasted() -> None:
    steps = timeline(reversed(HISTORY))
    assert [(s.what, s.seconds) for s in steps] == [
        ("queued", 3.5),
        ("queued → starting", 6.5),
        ("lease taken", None),
        ("starting → running", 91.0),
        ("desired suspended", None),
        ("running → suspending", 2.0),
        ("suspending → running", None),
    ]


def test_what_merely_repeats_is_told_once() -> None:
    again = [event(n, 300.0 + n, "lease_taken") for n in range(10, 20)]
    steps = timeline([*HISTORY, *again, event(30, 400.0, "phase", "running", "stopped")])
    assert [(s.what, s.at, s.times) for s in steps[-2:]] == [
        ("lease taken", 310.0, 10),
        ("running → stopped", 400.0, 1),
    ]


def test_time_in_phases_adds_up_to_its_age() -> None:
    spent = time_in_phases(HISTORY, now=303.0)
    assert spent == {"queued": 3.5, "starting": 6.5, "running": 191.0, "suspending": 2.0}
    assert sum(spent.values()) == 303.0 - 100.0


def test_what_has_ended_takes_no_more_time() -> None:
    ended = [*HISTORY, event(8, 210.0, "phase", "running", "stopped")]
    assert time_in_phases(ended, now=9999.0)["running"] == 98.0
    assert "stopped" not in time_in_phases(ended, now=9999.0)
    assert time_in_phases([], now=1.0) == {}


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (5 * 2**20, "5.0 MiB"),
        (2**40 * 3, "3.0 TiB"),
    ],
)
def test_size(count: int, text: str) -> None:
    assert size(count) == text
