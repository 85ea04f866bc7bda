"""Dates of deletion, in every implementation of the scheduler."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from scheduler_bridge.client import SchedulerClient
from scheduler_bridge.engine.settings import ManualClock
from scheduler_bridge.errors import Conflict, NotAllowed, Refused
from scheduler_bridge.inprocess import InProcessScheduler
from scheduler_bridge.model.phases import Desired, Phase
from scheduler_bridge.model.workload import EXPIRY_NOTICE_SECONDS, Expiry, Workload
from scheduler_bridge.plugin import SchedulerPlugin
from tests.builders.scheduler import TOKENS, served, session, snapshot
from tests.contracts.test_scheduler_plugin import move, plugin, running

__all__ = ["plugin"]

DAY = 86400.0


async def suspended(plugin: SchedulerPlugin) -> Workload:
    _, grant = await running(plugin, session(), "k")
    await move(plugin, grant, Phase.SUSPENDING)
    return await move(plugin, grant, Phase.SUSPENDED, snapshot=snapshot(1, 1))


def date(workload: Workload, days: float, **more: object) -> Expiry:
    """A date that many days after the suspend."""
    assert workload.snapshot is not None
    at = workload.phase_since + days * DAY
    return Expiry(workload.snapshot.key, at, "rule", "because", **more)  # type: ignore[arg-type]


async def test_a_date_is_shown_and_told_once_and_so_is_a_warning(plugin: SchedulerPlugin) -> None:
    workload = await suspended(plugin)
    assert workload.deletion is None
    for _ in range(2):
        await plugin.announce_expiry(workload.id, date(workload, 30))
    shown = (await plugin.get(workload.id)).deletion
    assert shown is not None
    assert (shown.at, shown.rule) == (workload.phase_since + 30 * DAY, "rule")
    assert shown.announced_at > 0
    await plugin.announce_expiry(workload.id, replace(shown, warned=(7,)))
    await plugin.announce_expiry(workload.id, None)
    events = await plugin.history(workload.id)
    told = next(event for event in events if event.kind == "expiry")
    assert re.fullmatch(r"its memory is deleted on \d{4}-\d\d-\d\d: because", told.cause)
    assert told.evidence["at"] == shown.at
    kinds = [event.kind for event in events]
    assert [k for k in kinds if k.startswith("expiry")] == [
        "expiry",
        "expiry_warning",
        "expiry_withdrawn",
    ]
    assert (await plugin.get(workload.id)).deletion is None


async def test_a_date_that_nobody_could_see_for_a_week_is_refused(plugin: SchedulerPlugin) -> None:
    workload = await suspended(plugin)
    with pytest.raises(Refused, match="for a week"):
        await plugin.announce_expiry(workload.id, date(workload, 6))
    assert (await plugin.get(workload.id)).deletion is None


async def test_a_session_that_goes_on_has_no_date(plugin: SchedulerPlugin) -> None:
    workload = await suspended(plugin)
    await plugin.announce_expiry(workload.id, date(workload, 30))
    await plugin.desire(workload.id, Desired.RUNNING, actor="a", reason="back")
    assert (await plugin.get(workload.id)).deletion is None
    for attempt in (
        plugin.announce_expiry(workload.id, date(workload, 30)),
        plugin.expire(workload.id, snapshot=date(workload, 0).snapshot),
    ):
        with pytest.raises(Conflict):
            await attempt


async def test_nothing_goes_before_its_date_or_without_one(plugin: SchedulerPlugin) -> None:
    workload = await suspended(plugin)
    with pytest.raises(Conflict, match="has not come"):
        await plugin.expire(workload.id, snapshot=date(workload, 0).snapshot)
    await plugin.announce_expiry(workload.id, date(workload, 30))
    with pytest.raises(Conflict, match="has not come"):
        await plugin.expire(workload.id, snapshot=date(workload, 0).snapshot)
    with pytest.raises(Conflict, match="not suspended as"):
        await plugin.expire(workload.id, snapshot="another")
    assert (await plugin.get(workload.id)).phase is Phase.SUSPENDED


@contextlib.asynccontextmanager
async def in_virtual_time() -> AsyncIterator[InProcessScheduler]:
    scheduler = InProcessScheduler(gpus=2, clock=ManualClock(1000.0))
    try:
        yield scheduler
    finally:
        await scheduler.aclose()


async def test_when_the_date_has_come_the_session_ends_and_says_why() -> None:
    async with in_virtual_time() as scheduler:
        workload = await suspended(scheduler)
        expiry = date(workload, 30)
        await scheduler.announce_expiry(workload.id, expiry)
        scheduler.advance(30 * DAY)
        ended = await scheduler.expire(workload.id, snapshot=expiry.snapshot)
        assert ended.phase is Phase.STOPPED
        assert "memory was deleted: because" in (await scheduler.history(workload.id))[-1].cause


async def test_an_earlier_date_must_be_seen_for_a_week_too() -> None:
    async with in_virtual_time() as scheduler:
        workload = await suspended(scheduler)
        await scheduler.announce_expiry(workload.id, date(workload, 30))
        scheduler.advance(20 * DAY)
        with pytest.raises(Refused):
            await scheduler.announce_expiry(workload.id, date(workload, 22))
        await scheduler.announce_expiry(workload.id, date(workload, 27))
        scheduler.advance(EXPIRY_NOTICE_SECONDS - 3600)
        with pytest.raises(Conflict):
            await scheduler.expire(workload.id, snapshot=date(workload, 0).snapshot)
        scheduler.advance(3600)
        await scheduler.expire(workload.id, snapshot=date(workload, 0).snapshot)


async def test_a_later_snapshot_has_no_date_until_there_is_one_for_it() -> None:
    async with in_virtual_time() as scheduler:
        workload = await suspended(scheduler)
        await scheduler.announce_expiry(workload.id, date(workload, 8))
        await scheduler.desire(workload.id, Desired.RUNNING, actor="a", reason="back")
        grant = await scheduler.take(workload.id)
        for phase in (Phase.FILLING, Phase.RUNNING, Phase.SUSPENDING):
            await move(scheduler, grant, phase)
        again = await move(scheduler, grant, Phase.SUSPENDED, snapshot=snapshot(2, 1))
        assert again.deletion is None
        scheduler.advance(9 * DAY)
        assert again.snapshot is not None
        with pytest.raises(Conflict):
            await scheduler.expire(again.id, snapshot=again.snapshot.key)


async def test_dates_are_for_administrators() -> None:
    async with served(gpus=2) as (_, url):
        for name in ("hub", "reclaimer"):
            client = SchedulerClient(url, TOKENS[name])
            try:
                with pytest.raises(NotAllowed):
                    await client.announce_expiry("s-1", None)
                with pytest.raises(NotAllowed):
                    await client.expire("s-1", snapshot="x")
            finally:
                await client.aclose()
