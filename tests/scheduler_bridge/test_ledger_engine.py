"""The ledger beside a running scheduler: what it counts, and that no end of the program changes it.

At every step the program may end without a word: another ledger is then made from the same store, and
has to have the same sums.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler_bridge.engine import ledger as ledger_module
from scheduler_bridge.engine.books import Books
from scheduler_bridge.engine.budgets import rules_now
from scheduler_bridge.engine.counting import LONGEST_STEP_MS
from scheduler_bridge.engine.ledger import Ledger
from scheduler_bridge.engine.scheduler import Scheduler
from scheduler_bridge.engine.settings import ManualClock, Settings
from scheduler_bridge.errors import SchedulerError
from scheduler_bridge.model.phases import Desired, Kind, Phase
from scheduler_bridge.model.teams import Team
from scheduler_bridge.model.usage import MICRO, FleetSums, Tag, UsageKey
from scheduler_bridge.model.workload import Event, Workload
from scheduler_bridge.policy.ledger import Sums
from scheduler_bridge.policy.usage_window import UsageWindow
from scheduler_bridge.store.base import Store, StoreError
from scheduler_bridge.store.ledger import LedgerMoved, Reach
from scheduler_bridge.store.opening import open_database, open_memory
from tests.builders.ledger import ALL, Site, budgets
from tests.builders.scheduler import job, one_node, session

HELD = Tag.ALLOCATED | Tag.UNALLOCATED


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site(open_memory())
    yield made
    made.scheduler.close()


def test_what_a_session_holds_is_counted_as_what_it_is(site: Site) -> None:
    workload = site.run(site.submit(session(gpus=2, min_runtime_seconds=60.0), "k"))
    site.clock.advance(50)
    site.idle(workload, site.clock.now() - 30)
    site.clock.advance(30)
    site.idle(workload, None)
    site.clock.advance(5)
    site.scheduler.desire(workload.id, Desired.SUSPENDED, actor="me", reason="away")
    site.move(workload, Phase.SUSPENDING)
    site.clock.advance(2)
    site.move(workload, Phase.SUSPENDED)
    site.clock.advance(100)
    late = Tag.ALLOCATED | Tag.INTERRUPTIBLE
    assert site.seconds() == {
        Tag.ALLOCATED: 2 * 50,
        Tag.ALLOCATED | Tag.IDLE: 2 * 10,
        late | Tag.IDLE: 2 * 20,
        late: 2 * 5,
        late | Tag.SUSPENDED: 2 * 2,
        Tag.GIVEN_BACK: 2 * 100,
    }


def test_work_without_protection_is_unallocated(site: Site) -> None:
    site.run(site.submit(job(gpus=1), "k"))
    site.clock.advance(1.25)
    assert site.seconds() == {Tag.UNALLOCATED | Tag.INTERRUPTIBLE: 1.25}
    assert site.ledger.used(site.clock.now()) == {
        ("default", int(Tag.UNALLOCATED | Tag.INTERRUPTIBLE)): 1.25
    }


def test_what_may_not_be_preempted_is_never_interruptible(site: Site) -> None:
    site.run(site.submit(job(gpus=1, preemptible=False), "k"))
    site.clock.advance(2)
    assert site.seconds() == {Tag.UNALLOCATED: 2}


def test_a_session_that_comes_back_with_another_team_is_charged_to_that(site: Site) -> None:
    workload = site.run(site.submit(session(team="a"), "k"))
    site.clock.advance(10)
    site.suspend(workload)
    site.submit(session(team="b"), "k")
    site.scheduler.desire(workload.id, Desired.RUNNING, actor="me", reason="back")
    site.clock.advance(5)
    by_team = Counter[str]()
    for (_, key), amount in site.ledger.usage(ALL, site.clock.now()).items():
        by_team[key.team] += amount
    assert by_team == {"a": 10 * MICRO, "b": 5 * MICRO}


def test_teams_are_owed_their_share_and_lend_and_borrow(site: Site) -> None:
    budgets(site, Team("a", share_percent=50, guaranteed=1), Team("b", share_percent=50))
    site.submit(job(gpus=4, team="b"), "big")
    site.clock.advance(100)
    waits = site.submit(session(gpus=3, team="a"), "waits")
    assert waits.phase is Phase.QUEUED
    site.clock.advance(10)
    now = site.clock.now()
    ((_, a), (_, b)) = sorted(site.ledger.teams(ALL, now).items(), key=lambda it: it[0])
    assert (a.owed, a.delivered, a.lent) == (20 * MICRO, 0, 220 * MICRO)
    assert (a.guaranteed_unused, a.guaranteed_lent) == (110 * MICRO, 110 * MICRO)
    assert (b.owed, b.unallocated, b.borrowed) == (220 * MICRO, 440 * MICRO, 220 * MICRO)
    assert b.on_guarantees == 110 * MICRO
    assert site.ledger.fleet(ALL, now) == FleetSums(440 * MICRO, 440 * MICRO, 0)
    assert site.ledger.balances(now) == pytest.approx({"a": 20, "b": -220}, rel=0.01)
    assert site.reloaded().balances(now) == pytest.approx(site.ledger.balances(now))


def test_budgets_that_change_count_from_then_on_after_a_restart_too(site: Site) -> None:
    budgets(site, Team("a", share_percent=100))
    site.submit(session(gpus=4, team="a"), "k")
    site.clock.advance(10)
    budgets(site, changed=(Team("a", share_percent=25),))
    site.clock.advance(10)
    for ledger in (site.ledger, site.reloaded()):
        ((_, sums),) = ledger.teams(ALL, site.clock.now()).items()
        assert sums.owed == (40 + 10) * MICRO


def test_the_planner_is_told_the_balances(site: Site) -> None:
    budgets(site, Team("a", share_percent=50))
    site.submit(session(gpus=4, team="a"), "k")
    site.clock.advance(100)
    rules = rules_now(site.scheduler.books, site.scheduler.settings)
    assert rules.teams["a"].balance == pytest.approx(-200, rel=0.01)


def test_a_fleet_that_has_grown_counts_from_when_it_is_seen(site: Site) -> None:
    site.clock.advance(10)
    site.gpus = 6
    site.start()
    site.scheduler.tick()
    site.clock.advance(1)
    assert site.ledger.fleet(ALL, site.clock.now()).capacity == (10 * 4 + 6) * MICRO
    assert site.reloaded().fleet(ALL, site.clock.now()).capacity == (10 * 4 + 6) * MICRO


def test_sums_are_stored_in_time_and_only_then(site: Site) -> None:
    site.submit(session(), "k")
    first = site.store.ledger.mark()
    site.clock.advance(599)
    site.scheduler.tick()
    assert site.store.ledger.mark() == first
    site.clock.advance(1)
    site.scheduler.tick()
    assert sum(site.store.ledger.usage(ALL).values()) == 600 * MICRO
    site.scheduler.close()
    site.scheduler.close()


def test_where_much_happens_sums_are_stored_earlier(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "STORED_AFTER_EVENTS", 3)
    workload = site.run(site.submit(session(), "k"))
    first = site.store.ledger.mark()
    site.clock.advance(9)
    site.scheduler.tick()
    assert site.store.ledger.mark() == first
    site.clock.advance(1)
    site.scheduler.tick()
    assert sum(site.store.ledger.usage(ALL).values()) == 10 * MICRO
    assert workload.lease is not None


def test_a_store_that_does_not_answer_costs_nothing(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.submit(session(), "k")
    working = site.ledger._store
    site.ledger._store = BreaksWhenAdding(working, StoreError("gone"))  # type: ignore[assignment]
    site.clock.advance(1000)
    site.scheduler.tick()
    assert "tried again later" in caplog.text
    site.ledger._store = working
    site.clock.advance(1000)
    site.scheduler.tick()
    assert sum(site.store.ledger.usage(ALL).values()) == 2000 * MICRO


class BreaksWhenAdding:
    """A ledger's store whose next write fails: before it is done, or after."""

    def __init__(self, store: object, error: StoreError, *, after: bool = False) -> None:
        self._store, self._error, self._after = store, error, after

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def add(self, *what: object) -> None:
        if self._after:
            self._store.add(*what)  # type: ignore[attr-defined]
        raise self._error


def test_a_write_whose_answer_was_lost_is_not_counted_twice(site: Site) -> None:
    site.submit(session(), "k")
    working = site.ledger._store
    site.ledger._store = BreaksWhenAdding(working, StoreError("lost"), after=True)  # type: ignore[assignment]
    site.clock.advance(1000)
    site.scheduler.tick()
    site.ledger._store = working
    site.clock.advance(500)
    site.scheduler.tick()
    assert sum(site.ledger.usage(ALL, site.clock.now()).values()) == 1500 * MICRO
    site.scheduler.tick()
    assert sum(site.store.ledger.usage(ALL).values()) == 1000 * MICRO


def test_another_writer_is_noticed(site: Site) -> None:
    site.submit(session(), "k")
    site.clock.advance(100)
    other = site.reloaded()
    other.settle()
    site.clock.advance(100)
    site.ledger.settle()
    assert sum(site.ledger.usage(ALL, site.clock.now()).values()) == 200 * MICRO
    mark = site.store.ledger.mark()
    assert mark is not None
    with pytest.raises(LedgerMoved):
        site.store.ledger.add(Sums(), mark)


def test_an_event_that_cannot_be_counted_is_counted_from_the_store(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.submit(session(), "k")
    site.clock.advance(10)
    broken = Event(99, site.clock.now(), "s", "submitted", "", "", target="no phase")
    with caplog.at_level(logging.CRITICAL):
        site.ledger._on_change((broken,))
    site.submit(session("b", gpus=2), "l")
    site.clock.advance(10)
    site.scheduler.tick()
    assert sum(site.seconds().values()) == 20 + 20


def test_what_nobody_leases_is_noticed_and_counted_no_further(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    workload = site.submit(session(gpus=2), "k")
    lost = Event(0, site.clock.now(), workload.id, "lease_released", "", "", evidence={"epoch": 1})
    site.ledger._on_change((lost,))
    site.ledger.settle()
    assert site.ledger.mismatch_gpus == -2
    assert "nobody leases" in caplog.text
    site.clock.advance(3)
    site.ledger.settle()
    assert site.ledger.mismatch_gpus == 0
    assert sum(site.seconds().values()) == 6


def test_a_clock_that_jumps_back_counts_nothing_until_it_has_caught_up(site: Site) -> None:
    site.submit(session(), "k")
    site.clock.advance(100)
    site.submit(session("b", gpus=0), "other")
    site.clock.advance(-80)
    site.submit(session("c", gpus=0), "another")
    for ledger in (site.ledger, site.reloaded()):
        assert sum(ledger.usage(ALL, site.clock.now()).values()) == 100 * MICRO
    site.clock.advance(90)
    for ledger in (site.ledger, site.reloaded()):
        assert sum(ledger.usage(ALL, site.clock.now()).values()) == 110 * MICRO


@pytest.mark.parametrize("sign", [1, -1])
def test_an_absurd_jump_is_charged_to_nobody(site: Site, sign: int) -> None:
    site.submit(session(), "k")
    site.clock.advance(10)
    site.clock.advance(sign * (LONGEST_STEP_MS / 1000 + 100))
    assert sum(site.ledger.usage(ALL, site.clock.now()).values()) == 0
    site.submit(session("b", gpus=0), "other")
    site.clock.advance(5)
    for ledger in (site.ledger, site.reloaded()):
        assert sum(ledger.usage(ALL, site.clock.now()).values()) == 5 * MICRO
    site.ledger.settle()
    site.clock.advance(-sign * (LONGEST_STEP_MS / 1000 + 100))
    site.submit(session("c", gpus=0), "another")
    site.clock.advance(5)
    for ledger in (site.ledger, site.reloaded()):
        assert sum(ledger.usage(ALL, site.clock.now()).values()) == 10 * MICRO


# -- any history ---------------------------------------------------------------------------------

SPECS = st.builds(
    lambda kind, user, gpus, team, protected, preemptible: (job if kind else session)(
        user, gpus, team=team, min_runtime_seconds=protected, preemptible=preemptible
    ),
    st.booleans(),
    st.sampled_from(("u", "v")),
    st.integers(0, 3),
    st.sampled_from(("a", "sub", "default")),
    st.sampled_from((0.0, 60.0, 5000.0)),
    st.booleans(),
)
STEPS = st.one_of(
    st.tuples(st.just("submit"), SPECS),
    st.tuples(st.just("pass"), st.integers(1, 300_000)),
    st.tuples(
        st.sampled_from(
            (
                *("run", "freeze", "suspend", "resume", "stop", "idle", "busy", "team", "end"),
                *("budgets", "store", "jump", "restart"),
            )
        ),
        st.integers(0, 50),
    ),
)


_POSSIBLE = {
    "run": {Phase.STARTING, Phase.RESUMING},
    "freeze": {Phase.RUNNING},
    "suspend": {Phase.RUNNING, Phase.SUSPENDING},
    "resume": {Phase.SUSPENDED},
    "stop": {Phase.QUEUED, Phase.STARTING, Phase.SUSPENDED},
    "idle": {Phase.RUNNING},
    "busy": {Phase.RUNNING},
    "team": {Phase.SUSPENDED},
    "end": {Phase.RUNNING},
}


class Story(Site):
    """Does whatever of a step is possible. Sums are stored only when a step says so."""

    stored_every = float(10**9)

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.numbers = iter(range(10**6))
        self.jumped = False
        self.by_hand: Counter[str] = Counter()
        """GPU-seconds by user, from what is leased while time passes."""

    def do(self, name: str, value: object) -> None:
        try:
            if name == "submit":
                self.submit(value, f"k{next(self.numbers)}")  # type: ignore[arg-type]
            elif name == "pass":
                self.let_pass(value / 100)  # type: ignore[operator]
            elif name in ("restart", "store", "jump", "budgets"):
                getattr(self, f"do_{name}")(value)
            else:
                self.with_one(name, value)  # type: ignore[arg-type]
        except SchedulerError:
            return

    def with_one(self, name: str, value: int) -> None:
        """The step with one of the workloads for which it is possible."""
        fit = [it for it in self.scheduler.books.workloads.values() if it.phase in _POSSIBLE[name]]
        if name in ("suspend", "freeze"):
            fit = [it for it in fit if it.spec.kind is Kind.SESSION]
        if fit:
            getattr(self, f"do_{name}")(fit[value % len(fit)])

    def let_pass(self, seconds: float) -> None:
        for record in self.scheduler.books.leases.values():
            user = self.scheduler.get(record.lease.workload_id).spec.user
            self.by_hand[user] += round(len(record.lease.gpus) * seconds * MICRO)
        self.clock.advance(seconds)
        self.scheduler.tick()

    def do_restart(self, _: object) -> None:
        self.start()

    def do_store(self, _: object) -> None:
        self.ledger.settle()

    def do_jump(self, value: int) -> None:
        self.jumped = True
        self.clock.advance(-value)

    def do_budgets(self, value: int) -> None:
        known = self.scheduler.books.budgets.teams
        a = Team("a", share_percent=value, guaranteed=value % 3)
        if "a" in known:
            budgets(self, changed=(a,))
        else:
            budgets(self, a, Team("sub", "a", share_percent=50))

    def do_run(self, workload: Workload) -> None:
        self.run(workload)

    def do_freeze(self, workload: Workload) -> None:
        self.scheduler.desire(workload.id, Desired.SUSPENDED, actor="me", reason="away")
        self.move(workload, Phase.SUSPENDING)

    def do_suspend(self, workload: Workload) -> None:
        self.suspend(workload)

    def do_resume(self, workload: Workload) -> None:
        self.scheduler.desire(workload.id, Desired.RUNNING, actor="me", reason="back")

    def do_stop(self, workload: Workload) -> None:
        self.scheduler.desire(workload.id, Desired.STOPPED, actor="me", reason="enough")

    def do_end(self, workload: Workload) -> None:
        is_job = workload.spec.kind is Kind.JOB
        self.move(workload, Phase.FAILED if is_job else Phase.STOPPED)

    def do_idle(self, workload: Workload) -> None:
        self.idle(workload, self.clock.now() - 100)

    def do_busy(self, workload: Workload) -> None:
        self.idle(workload, None)

    def do_team(self, workload: Workload) -> None:
        team = "a" if workload.spec.team != "a" else "default"
        self.submit(session(workload.spec.user, team=team), workload.key)


def everything(ledger: Ledger, now: float) -> tuple[object, ...]:
    hourly = Reach(0, 10**7, bucket=1)
    return (
        {key: n for key, n in ledger.usage(hourly, now).items() if n},
        {key: it for key, it in ledger.teams(hourly, now).items() if any(it)},
        ledger.fleet(ALL, now),
    )


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(STEPS, max_size=25))
def test_wherever_the_program_ends_its_successor_has_the_same_sums(
    steps: list[tuple[str, object]],
) -> None:
    story = Story(open_memory())
    with closing(story.store):
        for name, value in steps:
            story.do(name, value)
            now = story.clock.now()
            assert everything(story.reloaded(), now) == everything(story.ledger, now)
        held: Counter[str] = Counter()
        for (_, key), amount in story.ledger.usage(ALL, now := story.clock.now()).items():
            held[key.user] += amount if key.tags & HELD else 0
        assert story.jumped or +held == +story.by_hand
        fleet = story.ledger.fleet(ALL, now)
        assert fleet.held == sum(held.values())
        assert fleet.held + fleet.free == fleet.capacity
        story.ledger.settle()
        assert story.ledger.mismatch_gpus == 0
        assert everything(story.reloaded(), now) == everything(story.ledger, now)


STORY: list[tuple[str, object]] = [
    ("budgets", 50),
    ("submit", session("u", 2, team="sub", min_runtime_seconds=60.0)),
    ("pass", 1_234),
    ("run", 0),
    ("submit", job("v", 3, team="a")),
    ("pass", 300_000),
    ("idle", 0),
    ("pass", 77_777),
    ("busy", 0),
    ("pass", 1),
    ("freeze", 0),
    ("pass", 8),
    ("suspend", 0),
    ("pass", 500),
    ("run", 0),
    ("team", 0),
    ("resume", 0),
    ("pass", 20),
    ("budgets", 20),
    ("pass", 400_001),
    ("end", 0),
    ("pass", 3),
    ("run", 0),
    ("pass", 900),
    ("stop", 0),
    ("suspend", 0),
    ("pass", 7),
    ("stop", 0),
    ("pass", 90_000),
]


def told(steps: list[tuple[str, object]], store: Store) -> Story:
    story = Story(store)
    for name, value in steps:
        story.do(name, value)
    return story


@pytest.fixture(scope="module")
def whole() -> tuple[object, ...]:
    """The sums of the story, never stored before its end."""
    story = told(STORY, open_memory())
    with closing(story.store):
        return everything(story.ledger, story.clock.now())


@pytest.mark.parametrize("cut", range(len(STORY) + 1))
def test_wherever_sums_are_stored_the_rest_is_counted_from_the_events(
    whole: tuple[object, ...], cut: int
) -> None:
    parts = told([*STORY[:cut], ("store", 0), *STORY[cut:]], open_memory())
    with closing(parts.store):
        for ledger in (parts.ledger, parts.reloaded()):
            assert everything(ledger, parts.clock.now()) == whole


def test_the_story_has_everything_that_counts() -> None:
    story = told(STORY, open_memory())
    kinds = {event.kind for event in story.store.events(after=0, limit=1000)}
    assert kinds >= {"submitted", "phase", "lease_released", "idle", "busy", "team", "teams"}
    usage = story.ledger.usage(ALL, story.clock.now())
    assert {key.project for _, key in usage} == {"", "sub"}
    told_of = Tag(0)
    for _, key in usage:
        assert isinstance(key, UsageKey)
        told_of |= Tag(key.tags)
    assert told_of == Tag(63)
    story.store.close()


def test_a_file_that_is_opened_again_after_every_step_has_the_same_sums(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/scheduler.sqlite"
    straight = Story(open_memory())
    broken = Story(open_database(url))
    for name, value in STORY:
        straight.do(name, value)
        broken.do(name, value)
        # it just ends: nothing is stored at the end
        broken.store.close()
        broken.store = open_database(url)
        broken.start()
        now = straight.clock.now()
        assert everything(broken.ledger, now) == everything(straight.ledger, now)
    assert straight.by_hand == broken.by_hand != Counter()
    broken.store.close()
    straight.store.close()


def test_a_window_can_be_set() -> None:
    store = open_memory()
    with closing(store):
        books = Books(store, ManualClock(), one_node(1))
        window = UsageWindow(10, None, None)
        assert Scheduler(books, Settings(usage_window=window)).ledger.window == window
