"""What users see of others' work: through every endpoint, for whatever others do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_bridge import wire
from scheduler_bridge.api.callers import Caller, service, user
from scheduler_bridge.api.operations import Operations
from scheduler_bridge.api.service import create_service
from scheduler_bridge.api.stream import frames
from scheduler_bridge.engine.giving_up import declare_dead
from scheduler_bridge.engine.settings import ManualClock, Settings
from scheduler_bridge.errors import SchedulerError
from scheduler_bridge.inprocess import InProcessScheduler
from scheduler_bridge.model.phases import Desired, Kind, Phase
from scheduler_bridge.model.workload import (
    Event,
    Idleness,
    Priority,
    SnapshotRef,
    Workload,
    WorkloadSpec,
)
from scheduler_bridge.policy.visibility import SOMEBODY, Viewer, Visibility, may_know, redacted
from spawner.hosting import Seen
from spawner.pages_view import Server, page, row
from tests.builders.machines import machines

MARK = "xyzzy"
"""In everything of others that must not be seen."""

OWN = "alice"
USERS = (OWN, f"bob{MARK}", f"carol{MARK}")
TEAMS = ("red", f"blue{MARK}")
ACTIONS = ("submit", "take", "suspend", "idle", "wish", "advance", "die", "finish")


class House:
    """A scheduler in this process, its HTTP service, and people who use it."""

    def __init__(self, rule: Visibility, gpus: int = 3) -> None:
        self.plugin = InProcessScheduler(
            nodes=machines("n1", "n2", gpus=gpus),
            clock=ManualClock(),
            settings=Settings(queue_visibility=rule),
        )
        self.engine = self.plugin.engine
        self.app = create_service(self.engine, _Doorman())  # type: ignore[arg-type]
        self.count = 0

    async def get(self, who: str, path: str) -> Any:
        """The parsed answer to a user of team red (`admin`: to an administrator)."""
        transport = httpx.ASGITransport(self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://house") as client:
            answer = await client.get(f"/api/v1{path}", headers={"Authorization": who})
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def everything(self, who: str) -> str:
        """All that the service tells this user, and what the Hub's page says to them."""
        found = [await self.get(who, path) for path in ("/queue", "/nodes", "/fleet")]
        for live in ("true", "false"):
            found.append(await self.get(who, f"/workloads?live={live}"))
        for item in found[-1]:
            for part in ("", "/why", "/history", "/wait?version=-1"):
                found.append(await self.get(who, f"/workloads/{item['id']}{part}"))
        found.append(await self.what_if(who))
        found.append(await self.stream(who))
        found.append(self.hub_page(who))
        return json.dumps(found)

    async def what_if(self, who: str) -> Any:
        """What it is told of work that would take everything."""
        spec = WorkloadSpec(Kind.JOB, "all", who, "red", gpus=3, nodes=2, command=("x",))
        body = wire.WHAT_IF.dump_json(wire.WhatIfBody(spec))
        transport = httpx.ASGITransport(self.app)
        headers = {"Authorization": who, "Content-Type": "application/json"}
        async with httpx.AsyncClient(transport=transport, base_url="http://house") as client:
            answer = await client.post("/api/v1/what-if", content=body, headers=headers)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def stream(self, who: str) -> list[str]:
        """The frames of the events so far."""
        caller, sights = _caller(who), Operations(self.engine).sights

        async def so_far() -> AsyncIterator[Event]:
            for event in self.engine.books.store.events(after=0, limit=10_000):
                yield event

        shown = frames(so_far(), lambda event: sights.event(caller, event), 60.0)
        return [frame.decode() async for frame in shown]

    def hub_page(self, who: str) -> dict[str, Any]:
        """What the Hub's home page shows of this user's sessions."""
        fleet, now = self.engine.fleet(), self.plugin.clock.now()
        own = self.engine.list(kind=Kind.SESSION, user=who)
        rows = [
            row(w, Server("", True), Seen(), fleet, now=now, forecast=self.engine.why(w.id).resume)
            for w in own
        ]
        return page(rows, fleet, now=now)

    def submit(self, who: str, team: str, kind: Kind, priority: Priority, gpus: int) -> Workload:
        """Work whose every text is the user's own."""
        self.count += 1
        mark = "" if who == OWN else MARK
        spec = WorkloadSpec(
            kind,
            name=f"name{mark}{self.count}",
            user=who,
            team=team,
            server=f"server{mark}{self.count}" if kind is Kind.SESSION else "",
            gpus=gpus,
            priority=priority,
            command=(f"command{mark}",) if kind is Kind.JOB else (),
            environment={"V": f"value{mark}"} if kind is Kind.JOB else {},
            folder=f"/home/{mark}/folder" if kind is Kind.JOB else "",
        )
        return self.engine.submit(spec, key=f"key:{who}/{self.count}", actor=who)

    def act(self, action: str, workload: Workload) -> None:
        """Something happens to it; what is not possible now does not."""
        mark = "" if workload.spec.user == OWN else MARK
        try:
            self._act(action, self.engine.get(workload.id), mark)
        except SchedulerError:
            return

    def _act(self, action: str, workload: Workload, mark: str) -> None:
        name, engine = workload.id, self.engine
        if action == "take":
            grant = engine.take(name, actor=f"hub{mark}")
            engine.move(
                grant.lease.id, grant.credential, Phase.RUNNING, cause=f"cause{mark}",
                evidence={"log_path": f"/home/{mark}/log", "text": f"evidence{mark}"},
            )  # fmt: skip
        elif action == "suspend":
            grant = engine.take(name, actor=f"hub{mark}")
            shot = SnapshotRef(f"manifests/{mark}/1-1", workload.epoch, 1)
            for phase in (Phase.SUSPENDING, Phase.SUSPENDED):
                engine.move(
                    grant.lease.id, grant.credential, phase, cause=f"why{mark}", snapshot=shot
                )
        elif action == "idle":
            engine.set_idleness(name, Idleness(1.0, None, f"idle{mark}"), actor=f"r{mark}")
        elif action == "wish":
            wish = Desired.SUSPENDED if workload.desired is Desired.RUNNING else Desired.RUNNING
            engine.desire(name, wish, actor=f"actor{mark}", reason=f"reason{mark}")
        elif action == "finish":
            engine.desire(name, Desired.STOPPED, actor=f"actor{mark}", reason=f"reason{mark}")
        elif action == "die" and workload.lease is not None:
            lost = tuple(w.id for w in engine.list())
            declare_dead(
                engine, workload.lease.node, reason=f"died{MARK}", actor=f"admin{MARK}",
                at_once=True, given_up=lost,
            )  # fmt: skip


class _Doorman:
    """Believes everybody."""

    async def caller(self, header: str | None) -> Caller:
        return _caller(header or "")


def _caller(name: str) -> Caller:
    return (
        service("admin") if name == "admin" else user(name, groups=frozenset({"red"}), admin=False)
    )


STEPS = st.lists(
    st.tuples(
        st.sampled_from(ACTIONS),
        st.integers(0, 7),
        st.sampled_from(USERS),
        st.sampled_from(TEAMS),
        st.sampled_from(Kind),
        st.sampled_from(Priority),
        st.integers(0, 3),
    ),
    min_size=4,
    max_size=20,
)


def play(house: House, steps: list[tuple[Any, ...]]) -> None:
    """Own and others' work comes, runs, yields and goes."""
    made = [house.submit(OWN, "red", Kind.SESSION, Priority.LOW, 1)]
    for action, which, who, team, kind, priority, gpus in steps:
        own_team = team if who != OWN else "red"
        if action == "submit":
            made.append(house.submit(who, own_team, kind, priority, gpus))
        elif action == "advance":
            house.plugin.advance(60.0 * which)
        elif action != "die" or which == 0:
            house.act(action, made[which % len(made)])


@settings(max_examples=25, deadline=None)
@given(STEPS)
def test_under_counts_nothing_of_others_leaks(steps: list[tuple[Any, ...]]) -> None:
    house = House(Visibility.COUNTS)
    play(house, steps)
    # an administrator's reason for what happened to own work is told to its owner
    told = asyncio.run(house.everything(OWN)).replace(f"died{MARK}", "").replace(f"admin{MARK}", "")
    assert MARK not in told
    house.engine.close()


@settings(max_examples=10, deadline=None)
@given(STEPS, st.sampled_from([Visibility.TEAM, Visibility.NAMES]))
def test_whatever_the_rule_nobody_sees_what_others_run_or_were_told(
    steps: list[tuple[Any, ...]], rule: Visibility
) -> None:
    house = House(rule)
    play(house, steps)
    told = asyncio.run(house.everything(OWN))
    for private in (
        "command",
        "value",
        "reason",
        "cause",
        "why",
        "evidence",
        "idle",
        "actor",
        "hub",
    ):
        assert f"{private}{MARK}" not in told
    assert f"/{MARK}/" not in told
    if rule is Visibility.TEAM:
        assert f"blue{MARK}" not in told
    house.engine.close()


async def test_a_preempted_owner_is_told_for_whom_only_if_the_rule_allows() -> None:
    told = {}
    for rule in Visibility:
        house = House(rule, gpus=1)
        mine = house.submit(OWN, "red", Kind.JOB, Priority.LOW, 1)
        other = house.submit(OWN, "red", Kind.JOB, Priority.LOW, 1)
        for one in (mine, other):
            house.act("take", one)
        house.submit(USERS[1], "red", Kind.JOB, Priority.URGENT, 1)
        yielding = [w for w in (house.engine.get(mine.id), house.engine.get(other.id))
                    if w.desired is Desired.SUSPENDED]  # fmt: skip
        assert len(yielding) == 1
        told[rule.value] = yielding[0].desired_reason
        house.engine.close()
    assert told["counts"].startswith("Other work, of higher priority")
    assert (
        told["team"] == told["names"] == f"name{MARK}3, of higher priority in its team, needs GPUs."
    )


@pytest.mark.parametrize(
    ("rule", "names", "others"),
    [
        (Visibility.COUNTS, ["alice/server3"], 2),
        (Visibility.TEAM, [f"name{MARK}1", "alice/server3"], 1),
        (Visibility.NAMES, [f"name{MARK}1", f"name{MARK}2", "alice/server3"], 0),
    ],
)
async def test_the_queue_shows_what_the_rule_allows(
    rule: Visibility, names: list[str], others: int
) -> None:
    house = House(rule, gpus=1)
    house.act("take", house.submit("zoe", "red", Kind.JOB, Priority.NORMAL, 1))
    house.act("take", house.submit("zoe", "red", Kind.JOB, Priority.NORMAL, 1))
    house.count = 0
    house.submit(USERS[1], "red", Kind.JOB, Priority.HIGH, 1)
    house.submit(USERS[2], TEAMS[1], Kind.JOB, Priority.NORMAL, 1)
    house.submit(OWN, "red", Kind.SESSION, Priority.NORMAL, 1)
    seen = await house.get(OWN, "/queue")
    assert (seen["visibility"], seen["waiting"], seen["gpus"]) == (rule.value, 3, 3)
    assert sorted(r["work"]["name"] for r in seen["rows"] if r["work"]) == sorted(names)
    assert sum(r["count"] for r in seen["rows"] if r["work"] is None) == others
    own = next(r["work"] for r in seen["rows"] if r["work"] and r["work"]["user"] == OWN)
    assert own["reason"]
    assert {r["work"]["reason"] for r in seen["rows"] if r["work"]} <= {own["reason"], ""}
    every = await house.get("admin", "/queue")
    assert all(r["work"] and r["work"]["reason"] for r in every["rows"])
    house.engine.close()


async def test_nodes_show_holders_by_the_rule() -> None:
    for rule, shown in (
        (Visibility.COUNTS, [("", SOMEBODY), ("", SOMEBODY)]),
        (Visibility.TEAM, [("", SOMEBODY), (f"name{MARK}1", "")]),
        (Visibility.NAMES, [(f"name{MARK}1", ""), (f"name{MARK}2", "")]),
    ):
        house = House(rule, gpus=1)
        first = house.submit(USERS[1], "red", Kind.JOB, Priority.HIGH, 1)
        second = house.submit(USERS[2], TEAMS[1], Kind.JOB, Priority.HIGH, 1)
        nodes = await house.get(OWN, "/nodes")
        found = [
            (h["name"], h["workload_id"] if h["workload_id"] == SOMEBODY else "")
            for node in nodes
            for h in node["holders"]
        ]
        assert sorted(found) == sorted(shown)
        assert {first.id, second.id} == {
            h["workload_id"] for node in await house.get("admin", "/nodes") for h in node["holders"]
        }
        house.engine.close()


async def test_others_events_are_shown_without_why() -> None:
    seen = {}
    for rule in Visibility:
        house = House(rule)
        house.submit(USERS[1], "red", Kind.JOB, Priority.HIGH, 1)
        house.submit(USERS[2], TEAMS[1], Kind.JOB, Priority.HIGH, 1)
        frames_of = [it for it in await house.stream(OWN) if "data:" in it]
        events = [wire.EVENT.validate_json(it.partition("data: ")[2]) for it in frames_of]
        seen[rule.value] = sorted((e.kind, e.user) for e in events)
        assert {(e.cause, e.actor, *e.evidence) for e in events} <= {("", "")}
        house.engine.close()
    red = [("phase", USERS[1]), ("submitted", USERS[1])]
    assert seen["counts"] == []
    assert seen["team"] == red
    assert seen["names"] == sorted([*red, ("phase", USERS[2]), ("submitted", USERS[2])])


@pytest.mark.parametrize(
    ("viewer", "rule", "known"),
    [
        (Viewer("alice", frozenset({"red"})), Visibility.COUNTS, False),
        (Viewer("alice", frozenset({"red"})), Visibility.TEAM, True),
        (Viewer("alice", frozenset({"blue"})), Visibility.TEAM, False),
        (Viewer("alice"), Visibility.NAMES, True),
        (Viewer("bob"), Visibility.COUNTS, True),
        (Viewer("", sees_all=True), Visibility.COUNTS, True),
        (Viewer("", frozenset({"red"})), Visibility.NAMES, False),
    ],
)
def test_who_may_know(viewer: Viewer, rule: Visibility, known: bool) -> None:
    assert may_know(viewer, rule, user="bob", team="red") is known


def test_ids_are_replaced_however_deep() -> None:
    found = {"from": ["j-0123456789ab", {"s-0123456789ab": "of j-0123456789ab."}], "n": 3}
    assert redacted(found, lambda it: it[0].upper()) == {"from": ["J", {"S": "of J."}], "n": 3}
