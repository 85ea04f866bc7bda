"""Estimates in the running scheduler: learned from starts, kept over a restart, and compared with what
happened."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from scheduler_bridge.engine.books import Books
from scheduler_bridge.engine.estimates import REPEATED_SECONDS, Calibration, Estimates
from scheduler_bridge.engine.scheduler import Scheduler
from scheduler_bridge.engine.settings import ManualClock
from scheduler_bridge.estimate_metrics import EstimateCollector
from scheduler_bridge.model.outlook import Estimate
from scheduler_bridge.model.phases import Desired, Phase
from scheduler_bridge.model.workload import Workload, WorkloadSpec
from scheduler_bridge.policy.estimates import ENOUGH, Waited
from scheduler_bridge.store.base import StoreError
from scheduler_bridge.store.estimates import Given
from scheduler_bridge.store.opening import open_memory
from scheduler_bridge.store.sql import SqlStore
from tests.builders.scheduler import job, one_node


@pytest.fixture
def store() -> Iterator[SqlStore]:
    made = open_memory()
    yield made
    made.close()


class World:
    """A scheduler with one GPU and a clock that stands still until told otherwise."""

    def __init__(self, store: SqlStore) -> None:
        self.store, self.clock, self.count = store, ManualClock(), 0
        self.start()

    def start(self) -> None:
        """Also again, after what was a crash for all that it knows."""
        self.scheduler = Scheduler(Books(self.store, self.clock, one_node(1)))

    @property
    def estimates(self) -> Estimates:
        return self.scheduler.estimates

    def submit(self, **more: Any) -> Workload:
        self.count += 1
        spec: WorkloadSpec = job(min_runtime_seconds=60.0, max_runtime_seconds=1e6, **more)
        return self.scheduler.submit(spec, key=f"k{self.count}", actor="test")

    def run(self, workload: Workload) -> None:
        grant = self.scheduler.take(workload.id, actor="test")
        lease = grant.lease.id
        self.scheduler.move(lease, grant.credential, Phase.RUNNING, cause="test")
        self.end = lambda: self.scheduler.move(
            lease, grant.credential, Phase.SUCCEEDED, cause="test", exit_code=0
        )

    def one_waits(self, seconds: float) -> None:
        """Somebody runs, and who comes after waits for so long."""
        self.run(self.submit())
        later = self.submit()
        self.clock.advance(seconds)
        self.end()
        self.run(later)
        self.end()

    def ask(self, workload: Workload) -> Estimate:
        found = self.scheduler.why(workload.id).estimate
        assert found is not None
        return found

    def asked_behind_another(self) -> tuple[Workload, Estimate]:
        self.run(self.submit())
        later = self.submit()
        return later, self.ask(later)


@pytest.fixture
def world(store: SqlStore) -> World:
    return World(store)


def experienced(world: World) -> World:
    for seconds in range(ENOUGH):
        world.one_waits(100.0 + seconds)
    return world


def test_how_long_others_waited_is_learned_also_over_a_restart(world: World) -> None:
    experienced(world)
    rest = world.estimates.history.rest(Waited(50.0, 1, "default", True))
    assert rest is not None and 50 <= rest[0] <= rest[1] <= 70
    world.start()
    assert world.estimates.history.rest(Waited(50.0, 1, "default", True)) == rest


def test_an_estimate_that_comes_true_counts_as_right(world: World) -> None:
    experienced(world)
    later, told = world.asked_behind_another()
    assert told.basis == "history" and told.earliest is not None and told.latest is not None
    world.clock.advance(110.0)
    world.end()
    assert told.earliest <= world.clock.now() <= told.latest
    assert world.scheduler.get(later.id).phase is Phase.STARTING
    assert world.estimates.calibration("history") == Calibration("history", 1, 1, 0)
    world.run(later)
    world.end()
    _, told = world.asked_behind_another()
    assert (told.compared, told.measured) == (1, 1.0)


@pytest.mark.parametrize("seconds", [1.0, 5000.0])
def test_too_early_and_too_late_are_wrong(world: World, seconds: float) -> None:
    experienced(world)
    world.asked_behind_another()
    world.clock.advance(seconds)
    world.end()
    assert world.estimates.calibration("history") == Calibration("history", 1, 0, 0)


def test_what_came_of_estimates_widens_those_after_also_over_a_restart(world: World) -> None:
    experienced(world)
    before = world.estimates.history.tails
    world.asked_behind_another()
    world.clock.advance(5000.0)
    world.end()
    after = world.estimates.history.tails
    assert after.late < before.late and after.early > before.early
    world.start()
    assert world.estimates.history.tails == after


def test_what_is_overdue_is_wrong_before_it_starts(world: World) -> None:
    experienced(world)
    world.asked_behind_another()
    world.clock.advance(200.0)
    assert world.estimates.calibration("history") == Calibration("history", 1, 0, 0)


def test_who_never_starts_says_nothing_about_estimates(world: World) -> None:
    experienced(world)
    later, _ = world.asked_behind_another()
    assert world.estimates.calibration("history").open == 1
    world.scheduler.desire(later.id, Desired.STOPPED, actor="test", reason="")
    assert world.estimates.calibration("history") == Calibration("history", 0, 0, 0)


def test_the_same_is_told_again_for_a_while(world: World) -> None:
    later, told = world.asked_behind_another()
    assert told.basis == "reservation"
    world.clock.advance(REPEATED_SECONDS - 1)
    assert world.ask(later) == told
    world.clock.advance(2.0)
    assert world.ask(later).given_at == world.clock.now()
    assert len(world.store.estimates.open()) == 2


def test_what_was_told_is_compared_although_the_scheduler_was_started_again(world: World) -> None:
    experienced(world)
    later, _ = world.asked_behind_another()
    world.start()
    assert world.estimates.calibration("history").open == 1
    world.clock.advance(110.0)
    world.scheduler.desire(first_running(world).id, Desired.STOPPED, actor="test", reason="")
    world.end()
    assert world.scheduler.get(later.id).phase is Phase.STARTING
    assert world.estimates.calibration("history") == Calibration("history", 1, 1, 0)
    world.start()
    assert world.estimates.calibration("history") == Calibration("history", 1, 1, 0)


def first_running(world: World) -> Workload:
    return next(w for w in world.scheduler.list() if w.phase is Phase.RUNNING)


def test_a_start_that_nobody_compared_is_compared_at_the_next_start(world: World) -> None:
    later, told = world.asked_behind_another()
    given = Given(later.id, told.given_at, "history", 0.8, told.given_at, told.given_at + 60.0)
    world.store.estimates.add([given])  # the running scheduler does not know of this one
    world.clock.advance(30.0)
    world.end()
    world.start()
    assert world.estimates.calibration("history") == Calibration("history", 1, 1, 0)


def test_a_store_that_refuses_costs_only_the_comparison(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise StoreError("disk full")

    monkeypatch.setattr(world.store.estimates, "add", refuse)
    later, told = world.asked_behind_another()
    assert told.is_known
    monkeypatch.undo()
    assert world.store.estimates.open() == {}
    assert world.ask(later).is_known


def test_metrics(world: World) -> None:
    experienced(world)
    world.asked_behind_another()
    world.clock.advance(110.0)
    world.end()
    registry = CollectorRegistry()
    registry.register(EstimateCollector(world.estimates))
    text = generate_latest(registry).decode()
    assert 'hubernate_estimates_compared_total{basis="history",right="true"} 1.0' in text
    assert 'hubernate_estimates_compared_total{basis="history",right="false"} 0.0' in text
    assert 'hubernate_estimate_coverage_ratio{basis="history"} 1.0' in text
    assert 'hubernate_estimate_probability_ratio{basis="history"} 0.8' in text
