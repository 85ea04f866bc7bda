"""The digest of a planner's inputs: the same for the same world, another one for any other."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_bridge.engine.digest import LENGTH, Known, Prints, digest, plain
from scheduler_bridge.model.phases import Kind
from scheduler_bridge.policy.values import (
    FleetState,
    GpuKind,
    NodeState,
    Pending,
    Rules,
    Running,
    TeamRules,
    WaitReason,
)

NODES = tuple(
    NodeState(f"n{n}", (f"g{n}a", f"g{n}b"), facts={"kernel": "6"}, kinds={f"g{n}a": GpuKind("H")})
    for n in range(3)
)
FLEET = FleetState(NODES, {"g0a": "s-1", "g1a": "j-1"}, {"g0a": "j-2"})
PENDING = tuple(
    Pending(f"j-{n}", "red", 1, 1, 0, 5.0 + n, demands={"driver": "1"}, blocked_evidence={"n": 1})
    for n in range(2, 5)
)
RUNNING = (
    Running("s-1", Kind.SESSION, "red", ("g0a",), 0, 1.0, idle_since=2.0, saved_at=3.0),
    Running("j-1", Kind.JOB, "blue", ("g1a",), 1, 2.0),
)
RULES = Rules({"red": 4}, teams={"red": TeamRules(priority_limits={1: 2}, limit=1)})


def of(
    fleet: FleetState = FLEET,
    pending: tuple[Pending, ...] = PENDING,
    running: tuple[Running, ...] = RUNNING,
    rules: Rules = RULES,
    now: float = 9.0,
    known: Known | None = None,
) -> str:
    return digest(fleet, pending, running, rules, now, known=known)


@given(st.permutations(NODES), st.permutations(PENDING), st.permutations(RUNNING))
def test_orders_do_not_matter(
    nodes: list[NodeState], pending: list[Pending], running: list[Running]
) -> None:
    holders = dict(reversed(list(FLEET.holders.items())))
    fleet = replace(FLEET, nodes=tuple(nodes), holders=holders)
    assert of(fleet, tuple(pending), tuple(running)) == of()


def other(value: Any) -> Any:
    """A different value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, Enum):
        return next(member for member in type(value) if member is not value)
    if isinstance(value, int | float):
        return value + 1 if value < float("inf") else 7.0
    if isinstance(value, str):
        return value + "x"
    if value is None:
        return 77
    if isinstance(value, Mapping):
        return dict(list(value.items())[1:]) if value else {"more": "x"}
    assert isinstance(value, tuple)
    return (*value, "more")


def variants() -> list[Any]:
    """The same inputs with one field of one record changed."""
    found: list[Any] = []

    def add(label: str, record: Any, rebuild: Any) -> None:
        for field in fields(record):
            value = getattr(record, field.name)
            if not is_dataclass(value) and field.name not in ("nodes", "teams", "kinds"):
                changed = rebuild(replace(record, **{field.name: other(value)}))
                found.append(pytest.param(changed, id=f"{label}.{field.name}"))

    add("Pending", PENDING[0], lambda it: {"pending": (it, *PENDING[1:])})
    add("Running", RUNNING[0], lambda it: {"running": (it, *RUNNING[1:])})
    add("NodeState", NODES[0], lambda it: {"fleet": replace(FLEET, nodes=(it, *NODES[1:]))})
    add("GpuKind", GpuKind("H"), lambda it: _with_kind(it))
    add("FleetState", FLEET, lambda it: {"fleet": it})
    add("Rules", RULES, lambda it: {"rules": it})
    add("TeamRules", RULES.teams["red"], lambda it: {"rules": replace(RULES, teams={"red": it})})
    found += [
        pytest.param({"now": 9.5}, id="now"),
        pytest.param({"pending": PENDING[1:]}, id="one fewer waits"),
        pytest.param({"running": RUNNING[1:]}, id="one fewer runs"),
        pytest.param({"fleet": replace(FLEET, nodes=NODES[1:])}, id="one machine fewer"),
    ]
    return found


def _with_kind(kind: GpuKind) -> dict[str, FleetState]:
    node = replace(NODES[0], kinds={"g0a": kind})
    return {"fleet": replace(FLEET, nodes=(node, *NODES[1:]))}


@pytest.mark.parametrize("changed", variants())
def test_every_field_counts(changed: dict[str, Any]) -> None:
    known = Known()
    before = of(known=known)
    assert len(before) == LENGTH
    assert of(**changed, known=known) == of(**changed) != before
    assert of(known=known) == before


def test_who_holds_what_is_not_mistaken_for_who_waits_for_what() -> None:
    swapped = replace(FLEET, holders=FLEET.earmarks, earmarks=FLEET.holders)
    assert of(swapped) != of()


def test_equal_numbers_are_the_same() -> None:
    """What was an integer in memory may come back from the store as a fraction."""
    whole = tuple(replace(item, min_runtime=0, since=int(item.since)) for item in PENDING)
    assert of(pending=whole) == of(pending=whole, known=Known()) == of()


WAITING = st.builds(
    Pending,
    id=st.sampled_from(["a", "b", "c"]),
    team=st.sampled_from(["red", "blue"]),
    gpus=st.integers(0, 2),
    nodes=st.just(1),
    priority=st.integers(0, 1),
    since=st.floats(0, 3),
    blocked=st.none() | st.sampled_from(WaitReason),
)


@given(st.lists(st.lists(WAITING, unique_by=lambda item: item.id), max_size=6))
def test_what_is_remembered_changes_nothing(history: list[list[Pending]]) -> None:
    known = Known()
    for pending in history:
        assert of(pending=tuple(pending), known=known) == of(pending=tuple(pending))


class ReadPrints(Prints[Pending]):
    """Counts what it had to read."""

    reads = 0

    def put(self, name: str, item: Pending) -> None:
        self.reads += 1
        super().put(name, item)


def test_only_what_is_new_is_read() -> None:
    prints = ReadPrints()
    items = {item.id: item for item in PENDING}
    first = prints.follow(items)
    assert prints.reads == len(PENDING)
    assert prints.follow(items) == first
    assert prints.follow({name: replace(item) for name, item in items.items()}) == first
    prints.follow({**items, "j-2": replace(items["j-2"], gpus=7)})
    assert prints.reads == len(PENDING) + 1


def test_what_has_no_form_is_refused() -> None:
    with pytest.raises(TypeError, match="object has no canonical form"):
        plain({"a": [object()]})


def test_other_processes_get_the_same() -> None:
    code = "from tests.scheduler_bridge.test_digest import of; print(of())"
    checkout = Path(__file__).parents[2]
    told = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PATH": os.environ["PATH"], "PYTHONHASHSEED": seed},
            cwd=checkout,
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert told == {f"{of()}\n".encode()}
