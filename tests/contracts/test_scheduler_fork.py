"""Forks in every implementation of `SchedulerPlugin`: in-process, and over real HTTP."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler_bridge.client import SchedulerClient
from scheduler_bridge.errors import Conflict, NotAllowed, Refused
from scheduler_bridge.model.phases import Desired, Phase
from scheduler_bridge.model.workload import Fork, Workload
from scheduler_bridge.plugin import SchedulerPlugin
from tests.builders.scheduler import TOKENS, served, session, snapshot
from tests.contracts.test_scheduler_plugin import move, plugin, running, suspended, until

__all__ = ["plugin"]

NEW = Fork("s-0123456789ab", "session:h/alice/second", "alice.second", "second")
COPY = replace(snapshot(3, 2), key="manifests/a/fork/3-2")


async def forked(plugin: SchedulerPlugin, source: Workload, new: Fork = NEW) -> Workload:
    return await plugin.fork(
        source.id, new=new, snapshot=COPY, source_snapshot=snapshot().key, actor="alice"
    )


async def test_a_fork_is_a_suspended_session_of_the_same_owner(plugin: SchedulerPlugin) -> None:
    source = await suspended(plugin)
    made = await forked(plugin, source)
    assert (made.id, made.key, made.phase) == (NEW.id, NEW.key, Phase.SUSPENDED)
    assert made.desired is Desired.SUSPENDED
    assert made.snapshot == COPY
    assert made.spec == replace(source.spec, name="alice.second", server="second")
    assert (await plugin.get(source.id)).snapshot == snapshot()
    assert await plugin.find(NEW.key) == made


async def test_both_are_resumed_side_by_side(plugin: SchedulerPlugin) -> None:
    source = await suspended(plugin)
    made = await forked(plugin, source)
    for each in (source, made):
        await plugin.desire(each.id, Desired.RUNNING, actor="alice", reason="clicked")
        back = await until(plugin, each.id, Phase.RESUMING)
        assert back.lease is not None
    grant = await plugin.take(made.id)
    assert grant.lease.epoch == 4, "what it stores is newer than what it comes from"
    await move(plugin, grant, Phase.FILLING)
    assert (await move(plugin, grant, Phase.RUNNING)).id == made.id


async def test_asked_twice_there_is_one(plugin: SchedulerPlugin) -> None:
    source = await suspended(plugin)
    first = await forked(plugin, source)
    assert await forked(plugin, source) == first


async def test_only_what_is_suspended_is_forked(plugin: SchedulerPlugin) -> None:
    lives, _ = await running(plugin, session(), "k")
    with pytest.raises(Conflict, match="Only a suspended session"):
        await forked(plugin, lives)
    assert await plugin.find(NEW.key) is None


async def test_a_newer_snapshot_is_another_session_by_then(plugin: SchedulerPlugin) -> None:
    source = await suspended(plugin)
    with pytest.raises(Conflict, match="another snapshot"):
        await plugin.fork(source.id, new=NEW, snapshot=COPY, source_snapshot="older", actor="alice")
    assert await plugin.find(NEW.key) is None


async def test_names_and_ids_that_are_taken_stay_whose_they_are(plugin: SchedulerPlugin) -> None:
    source = await suspended(plugin)
    with pytest.raises(Conflict, match="already a session"):
        await forked(plugin, source, replace(NEW, key=source.key))
    await forked(plugin, source)
    with pytest.raises(Conflict, match="is taken"):
        await forked(plugin, source, replace(NEW, key="session:h/alice/third"))


@pytest.mark.parametrize("wrong", ["../../etc", "s-1", "", "j-0123456789ab"])
async def test_an_id_that_is_none_is_refused(plugin: SchedulerPlugin, wrong: str) -> None:
    source = await suspended(plugin)
    with pytest.raises(Refused, match="no session's id"):
        await forked(plugin, source, replace(NEW, id=wrong))


async def test_the_reclaimer_may_not_fork() -> None:
    async with served(gpus=1) as (_, url):
        admin = SchedulerClient(url, TOKENS["admin"])
        reclaimer = SchedulerClient(url, TOKENS["reclaimer"])
        try:
            source = await suspended(admin)
            with pytest.raises(NotAllowed):
                await forked(reclaimer, source)
        finally:
            await admin.aclose()
            await reclaimer.aclose()
