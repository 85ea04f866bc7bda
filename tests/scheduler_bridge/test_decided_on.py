"""Every placement and preemption says what it was decided on, so that it can be decided again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from scheduler_bridge.engine.board import Board
from scheduler_bridge.engine.books import Books
from scheduler_bridge.engine.scheduler import Scheduler
from scheduler_bridge.engine.settings import ManualClock, Settings
from scheduler_bridge.model.phases import Phase
from scheduler_bridge.model.workload import Event, Priority
from scheduler_bridge.store.base import Store
from scheduler_bridge.store.opening import open_memory
from tests.builders.scheduler import job, one_node

SETTINGS = Settings()
CLOCK = ManualClock()
NODES = one_node(2)


@pytest.fixture
def store() -> Iterator[Store]:
    opened = open_memory()
    yield opened
    opened.close()


@pytest.fixture
def scheduler(store: Store) -> Scheduler:
    """Plans when told to."""
    made = Scheduler(Books(store, CLOCK, NODES), SETTINGS)
    made.wake = lambda: None
    return made


def seen_by_another(store: Store) -> str:
    """The digest of what somebody sees who knows only what is stored."""
    books, now = Books(store, CLOCK, NODES), CLOCK.now()
    board = Board(books, SETTINGS, {})
    board.refresh(now)
    return board.inputs(now)


def decisions(store: Store) -> list[Event]:
    """Placements and preemptions so far."""
    events = store.events(after=0, limit=1000)
    return [e for e in events if e.kind == "preempted" or e.cause == "placed"]


def test_it_is_what_somebody_else_would_see(scheduler: Scheduler, store: Store) -> None:
    for number in range(3):
        scheduler.submit(job(f"user{number}"), key=str(number), actor="me")
    seen = seen_by_another(store)
    scheduler.tick()
    first, second = decisions(store)
    assert first.evidence["inputs"] == second.evidence["inputs"] == seen
    assert first.evidence["planned_at"] == CLOCK.now()


def test_later_passes_remember_and_see_the_same(scheduler: Scheduler, store: Store) -> None:
    """Placed, running, preempted: what the board keeps stays what a new one would read."""
    low = scheduler.submit(job(gpus=2, priority=Priority.LOW), key="low", actor="me")
    scheduler.tick()
    grant = scheduler.take(low.id, actor="me")
    scheduler.move(grant.lease.id, grant.credential, Phase.RUNNING, cause="up")
    CLOCK.advance(100.0)
    high = scheduler.submit(job(gpus=1, priority=Priority.HIGH), key="high", actor="me")
    seen = seen_by_another(store)
    scheduler.tick()
    preempted = decisions(store)[-1]
    assert (preempted.kind, preempted.evidence["for"]) == ("preempted", high.id)
    assert preempted.evidence["inputs"] == seen
    scheduler.move(grant.lease.id, grant.credential, Phase.QUEUED, cause="yielded")
    seen = seen_by_another(store)
    scheduler.tick()
    placed = decisions(store)[2:]
    assert [event.evidence["inputs"] for event in placed] == [seen] * len(placed)
    assert {event.workload_id for event in placed} == {high.id}
    assert len({event.evidence["inputs"] for event in decisions(store)}) == 3
