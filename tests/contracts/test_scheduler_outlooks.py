"""What would start work now, when it starts, and what would come of work before it is submitted: the same
in-process and over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from scheduler_bridge.errors import Refused
from scheduler_bridge.model.outlook import Variant
from scheduler_bridge.model.phases import Phase
from scheduler_bridge.model.workload import Explanation, Priority, Workload, WorkloadSpec
from scheduler_bridge.plugin import SchedulerPlugin
from tests.builders.scheduler import job, scheduler_plugin, session

HOUR = 3600.0


@pytest.fixture(params=["in-process", "http"])
async def plugin(request: pytest.FixtureRequest) -> AsyncIterator[SchedulerPlugin]:
    async with scheduler_plugin(request.param, gpus=4) as made:
        yield made


async def running(plugin: SchedulerPlugin, spec: WorkloadSpec, key: str) -> Workload:
    """Placed, taken up and told to run."""
    workload = await plugin.submit(spec, key=key)
    async with asyncio.timeout(10):
        while workload.phase is not Phase.STARTING:
            workload = await plugin.wait(workload.id, version=workload.version, timeout=5)
    grant = await plugin.take(workload.id)
    return await plugin.move(grant.lease.id, grant.credential, Phase.RUNNING, cause="it runs")


async def waiting(plugin: SchedulerPlugin, spec: WorkloadSpec, key: str) -> Workload:
    workload = await plugin.submit(spec, key=key)
    async with asyncio.timeout(10):
        while not workload.wait_reason:
            workload = await plugin.wait(workload.id, version=workload.version, timeout=5)
    return workload


async def why(plugin: SchedulerPlugin, spec: WorkloadSpec) -> Explanation:
    return await plugin.why((await waiting(plugin, spec, "waiting")).id)


async def test_why_names_the_smallest_changes_and_the_moment(plugin: SchedulerPlugin) -> None:
    busy = await running(plugin, job(gpus=2, min_runtime_seconds=HOUR), "busy")
    urgent = job(gpus=4, min_runtime_seconds=2 * HOUR, priority=Priority.HIGH)
    found = await why(plugin, urgent)
    fewer, moment = found.changes[0], found.changes[-1]
    assert (fewer.kind, fewer.values, fewer.makes_room) == ("gpus", {"gpus": 2}, False)
    assert fewer.text == "2 GPUs fewer (2 instead of 4)"
    assert moment.kind == "moment" and moment.last == (busy.id,)
    assert busy.lease is not None and moment.at == busy.lease.granted_at + HOUR
    assert moment.text == f"as it is, when the last protection in the way ends: {busy.id}"


async def test_why_tells_when_it_starts_by_the_reservation(plugin: SchedulerPlugin) -> None:
    busy = await running(
        plugin, job(gpus=2, min_runtime_seconds=60.0, max_runtime_seconds=HOUR), "busy"
    )
    found = await why(plugin, job(gpus=4, min_runtime_seconds=2 * HOUR))
    assert found.estimate is not None and busy.lease is not None
    assert found.estimate.basis == "reservation"
    assert found.estimate.latest == busy.lease.granted_at + HOUR
    assert (found.estimate.compared, found.estimate.measured) == (0, None)


async def test_why_says_honestly_that_nobody_knows(plugin: SchedulerPlugin) -> None:
    await running(plugin, job(gpus=4, preemptible=False), "busy")
    found = await why(plugin, job(gpus=4))
    assert found.estimate is not None
    assert (found.estimate.latest, found.estimate.reason) == (None, "too_few_started")
    assert found.changes == ()


async def test_the_queue_tells_estimates(plugin: SchedulerPlugin) -> None:
    await running(plugin, job(gpus=4, min_runtime_seconds=60.0, max_runtime_seconds=HOUR), "busy")
    workload = await waiting(plugin, job(gpus=1, min_runtime_seconds=HOUR), "k")
    asked = (await plugin.why(workload.id)).estimate
    view = await plugin.queue()
    assert [row.work.estimate for row in view.rows if row.work] == [asked]


async def test_what_runs_has_no_estimate(plugin: SchedulerPlugin) -> None:
    found = await plugin.why((await running(plugin, job(gpus=1), "k")).id)
    assert (found.estimate, found.changes) == (None, ())


async def test_the_price_of_a_guarantee_before_submitting(plugin: SchedulerPlugin) -> None:
    await running(plugin, job(gpus=2), "slack")
    found = await plugin.what_if(job(gpus=4, min_runtime_seconds=HOUR))
    told = {each.spec.min_runtime_seconds: each for each in found}
    assert list(told) == [HOUR, 0.0, 900.0, 8 * HOUR]
    assert told[HOUR].outcome == told[900.0].outcome
    assert told[0.0].outcome == "waits"
    assert told[0.0].estimate is not None and told[0.0].estimate.reason == "too_few_started"
    assert "It needs 4 GPUs and 2" in told[0.0].text
    assert len(await plugin.list()) == 1, "nothing was submitted"


async def test_what_starts_at_once_says_so(plugin: SchedulerPlugin) -> None:
    (found, *_) = await plugin.what_if(job(gpus=4))
    assert (found.outcome, found.text, found.estimate) == ("now", "", None)
    (found, *_) = await plugin.what_if(session(gpus=1))
    assert found.outcome == "now"


async def test_variants_are_what_was_asked_for(plugin: SchedulerPlugin) -> None:
    found = await plugin.what_if(job(gpus=4), [Variant(gpus=2), Variant(gpus=5), Variant(nodes=2)])
    assert [each.outcome for each in found] == ["now", "now", "refused", "refused"]
    assert "at most 4 GPUs" in found[2].text and found[2].remedy
    assert [each.spec.gpus for each in found] == [4, 2, 5, 4]


async def test_a_spec_that_would_be_refused_says_why(plugin: SchedulerPlugin) -> None:
    (found,) = (await plugin.what_if(job(gpus=9), [Variant(gpus=1)]))[:1]
    assert (found.outcome, found.reason) == ("refused", "refused")
    assert "at most 4 GPUs" in found.text


async def test_too_many_variants_are_refused(plugin: SchedulerPlugin) -> None:
    with pytest.raises(Refused, match="at most 16"):
        await plugin.what_if(job(), [Variant(gpus=1)] * 17)
