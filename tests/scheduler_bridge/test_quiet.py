"""Nothing is written unless something changed, and what is not written is not missed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from scheduler_bridge.engine.books import Books
from scheduler_bridge.engine.scheduler import Scheduler
from scheduler_bridge.engine.settings import ManualClock, Settings
from scheduler_bridge.model.phases import Desired, Phase
from scheduler_bridge.model.workload import Grant, Idleness, Report
from tests.builders.scheduler import job, one_node, session
from tests.fakes.counting_store import CountingStore

HOLDERS = 3
SETTINGS = Settings(lease_seconds=600.0)


@dataclass
class Site:
    """A scheduler whose GPUs are all in use and for one of which somebody waits."""

    clock: ManualClock = field(default_factory=ManualClock)
    store: CountingStore = field(default_factory=CountingStore)
    grants: dict[str, Grant] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.restart()
        for number in range(HOLDERS):
            name = f"user{number}"
            workload = self.scheduler.submit(session(name), key=name, actor="hub")
            grant = self.scheduler.take(workload.id, actor="hub")
            self.grants[workload.id] = grant
            self.scheduler.move(grant.lease.id, grant.credential, Phase.RUNNING, cause="up")
        self.waiting = self.scheduler.submit(job(gpus=1), key="j", actor="bob").id

    def restart(self) -> None:
        """As after a crash: what was only in memory is gone."""
        self.scheduler = Scheduler(Books(self.store, self.clock, one_node(HOLDERS)), SETTINGS)

    async def beat(self, minute: int = 0) -> None:
        for workload_id, grant in self.grants.items():
            signals = {"sampled_at": self.clock.now(), "cpu_seconds": 60.0 * minute}
            handle = {"supervisor": {"pid": 7, "started": 1}, "sandbox": {"pid": 8}}
            report = Report(grant.lease.epoch, Phase.RUNNING, handle=handle, signals=signals)
            answer = await self.scheduler.heartbeat(
                grant.lease.id, grant.credential, report, wait=0.0
            )
            assert not answer.revoked
            assert answer.expires_at == self.clock.now() + SETTINGS.lease_seconds
            assert self.scheduler.get(workload_id).signals == signals


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    yield made
    made.scheduler.close()


async def test_a_quiet_hour_writes_nothing(site: Site) -> None:
    busy = Idleness(reason="it is in use: kernel 1 is running a cell")
    first = next(iter(site.grants))
    await site.beat()
    site.scheduler.hear(["here"])
    site.scheduler.learn("here", {"kernel": "6.1"})
    site.scheduler.set_idleness(first, busy, actor="reclaimer")
    site.store.written.clear()
    for minute in range(60):
        site.clock.advance(60.0)
        await site.beat(minute)
        site.scheduler.hear(["here"])
        site.scheduler.learn("here", {"kernel": "6.1"})
        site.scheduler.tick()
        site.scheduler.set_idleness(first, busy, actor="reclaimer")
        site.scheduler.submit(session("user0"), key="user0", actor="hub")
        site.scheduler.desire(first, Desired.RUNNING, actor="hub", reason="asked for")
        site.scheduler.why(site.waiting)
    assert site.store.written == []


async def test_what_is_new_about_a_holder_is_written_once(site: Site) -> None:
    site.store.written.clear()
    await site.beat()
    await site.beat()
    assert len(site.store.written) == HOLDERS
    assert all("sandbox" in batch.leases[0].handle for batch in site.store.written)


def test_what_is_decided_together_is_written_together() -> None:
    store = CountingStore()
    scheduler = Scheduler(Books(store, ManualClock(), one_node(HOLDERS)), SETTINGS)
    scheduler.wake = lambda: None
    for number in range(HOLDERS + 1):
        scheduler.submit(job(f"user{number}"), key=str(number), actor="me")
    store.written.clear()
    scheduler.tick()
    assert [len(batch.leases) for batch in store.written] == [HOLDERS]
    assert len(store.load().leases) == HOLDERS
    scheduler.close()


async def test_nobody_is_lost_for_what_was_not_written(site: Site) -> None:
    await site.beat()
    for minute in range(60):
        site.clock.advance(60.0)
        await site.beat(minute)
    site.restart()
    site.scheduler.tick()
    phases = {site.scheduler.get(name).phase for name in site.grants}
    assert phases == {Phase.RUNNING}
    kinds = {event.kind for event in site.store.events(after=0, limit=1000)}
    assert "phase" in kinds and "node_silent" not in kinds
    site.clock.advance(SETTINGS.lease_seconds)
    await site.beat()


async def test_who_stays_silent_after_a_restart_is_lost_no_earlier_than_it_stopped_itself(
    site: Site,
) -> None:
    """Its last renewal, unknown after the restart, ends before the lease that it is given now."""
    site.clock.advance(300.0)
    await site.beat()
    renewed = site.clock.now() + SETTINGS.lease_seconds
    site.restart()
    due = site.scheduler.next_due()
    assert due is not None and due >= renewed + SETTINGS.lease_margin
    site.clock.advance(due - site.clock.now())
    site.scheduler.tick()
    assert {site.scheduler.get(name).phase for name in site.grants} == {Phase.LOST}
