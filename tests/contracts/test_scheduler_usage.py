"""GPU time, in every implementation of the scheduler."""

from __future__ import annotations

import asyncio

import pytest

from scheduler_bridge.errors import Refused
from scheduler_bridge.model.usage import Bucket, Grouping, UsageQuestion
from scheduler_bridge.plugin import SchedulerPlugin
from tests.builders.scheduler import session
from tests.contracts.test_scheduler_plugin import placed, plugin

__all__ = ["plugin"]


async def test_what_is_held_is_counted_by_whom_and_as_what(plugin: SchedulerPlugin) -> None:
    assert (await plugin.usage(UsageQuestion())).lines == ()
    await placed(plugin, session("alice", min_runtime_seconds=60.0), "k")
    async with asyncio.timeout(10):
        seen = await plugin.usage(UsageQuestion())
        while not seen.lines:
            seen = await plugin.usage(UsageQuestion())
    (line,) = seen.lines
    assert (line.team, line.delivered) == ("default", line.allocated)
    assert seen.fleet is not None
    assert seen.fleet.held + seen.fleet.free == pytest.approx(seen.fleet.capacity)
    assert {it.team: it.balance < 0 for it in seen.balances} == {"default": True}
    for group_by, told in (
        (Grouping.USER, "alice"),
        (Grouping.TAG, "allocated"),
        (Grouping.PROJECT, "default"),
    ):
        question = UsageQuestion(seen.until - 86400, None, group_by, Bucket.DAY)
        lines = (await plugin.usage(question)).lines
        assert {it.user or it.tag or it.team for it in lines} == {told}
        assert all(it.at % 86400 == 0 for it in lines)


async def test_times_that_make_no_sense_are_refused(plugin: SchedulerPlugin) -> None:
    with pytest.raises(Refused, match="before"):
        await plugin.usage(UsageQuestion(7200.0, 3600.0))
    with pytest.raises(Refused, match="31 days"):
        await plugin.usage(UsageQuestion(0.0, None, bucket=Bucket.HOUR))
