"""A place that comes after the Hub stopped waiting starts the server by the Hub's REST API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from scheduler_bridge.engine.hub_gateway import HubGateway
from scheduler_bridge.engine.settings import ManualClock
from scheduler_bridge.inprocess import InProcessScheduler
from scheduler_bridge.model.workload import Workload
from tests.builders.scheduler import job, session
from tests.fakes.scheduler_hubs import FakeHub, fake_hub


class Scene:
    def __init__(self, hub: FakeHub) -> None:
        self.hub = hub
        self.plugin = InProcessScheduler(gpus=1, clock=ManualClock())
        self.gateway = HubGateway(self.plugin.engine, hub.url, "our-token")

    async def placed(self, **more: str) -> Workload:
        spec = session("a b/ü", **more)
        return await self.plugin.submit(spec, key="k")

    async def after(self, seconds: float) -> list[str]:
        self.plugin.advance(seconds)
        await self.gateway.step()
        await self.gateway.settle()
        return self.hub.starts


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with fake_hub() as hub:
        made = Scene(hub)
        yield made
        await made.gateway.aclose()
        await made.plugin.aclose()


async def test_the_server_is_started_when_nobody_takes_the_place(scene: Scene) -> None:
    workload = await scene.placed()
    assert await scene.after(1.9) == []
    assert scene.gateway.next_due() == pytest.approx(scene.plugin.clock.now() + 0.1)
    assert await scene.after(0.1) == ["/hub/api/users/a%20b%2F%C3%BC/server"]
    assert scene.hub.tokens == ["our-token"]
    last = (await scene.plugin.history(workload.id))[-1]
    assert (last.kind, last.evidence) == ("hub_start", {"accepted": True, "attempt": 1})


async def test_a_named_server_is_started_by_its_name(scene: Scene) -> None:
    await scene.placed(server="gpu/2")
    assert await scene.after(2) == ["/hub/api/users/a%20b%2F%C3%BC/servers/gpu%2F2"]


async def test_a_place_that_is_taken_up_needs_nobody(scene: Scene) -> None:
    workload = await scene.placed()
    await scene.plugin.take(workload.id)
    assert await scene.after(60) == []


async def test_a_hub_that_waits_needs_nobody(scene: Scene) -> None:
    workload = await scene.placed()
    waiting = asyncio.ensure_future(
        scene.plugin.engine.wait(workload.id, version=workload.version, timeout=30, waiter="hub")
    )
    await asyncio.sleep(0)
    assert await scene.after(10) == []
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert len(await scene.after(0)) == 1


async def test_somebody_elses_waiting_is_not_the_hubs(scene: Scene) -> None:
    workload = await scene.placed()
    waiting = asyncio.ensure_future(
        scene.plugin.engine.wait(workload.id, version=workload.version, timeout=30, waiter="cli")
    )
    await asyncio.sleep(0)
    assert len(await scene.after(2)) == 1
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_jobs_are_not_the_hubs(scene: Scene) -> None:
    await scene.plugin.submit(job(), key="j")
    assert await scene.after(10) == []


async def test_a_refused_start_is_noted_and_tried_again_with_longer_pauses(scene: Scene) -> None:
    scene.hub.start_status = 400
    workload = await scene.placed()
    counts = [len(await scene.after(seconds)) for seconds in (2, 4, 1, 14, 1, 29, 1, 59, 1, 59, 1)]
    assert counts == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6]
    last = (await scene.plugin.history(workload.id))[-1]
    assert last.cause == "the Hub answered 400: a reason"
    assert last.evidence == {"accepted": False, "attempt": 6}


async def test_a_hub_that_is_down_is_asked_again() -> None:
    plugin = InProcessScheduler(gpus=1, clock=ManualClock())
    gateway = HubGateway(plugin.engine, "http://127.0.0.1:1/hub/api", "t")
    workload = await plugin.submit(session(), key="k")
    for seconds in (2, 5):
        plugin.advance(seconds)
        await gateway.step()
        await gateway.settle()
    notes = [e for e in await plugin.history(workload.id) if e.kind == "hub_start"]
    assert len(notes) == 2
    assert "does not answer" in notes[0].cause
    await gateway.aclose()
    await plugin.aclose()


async def test_one_slow_start_does_not_hold_up_the_others() -> None:
    async with fake_hub() as hub:
        hub.released.clear()
        plugin = InProcessScheduler(gpus=2, clock=ManualClock())
        gateway = HubGateway(plugin.engine, hub.url, "t")
        await plugin.submit(session("a"), key="a")
        await plugin.submit(session("b"), key="b")
        plugin.advance(2)
        await gateway.step()
        async with asyncio.timeout(10):
            while len(hub.starts) < 2:
                hub.changed.clear()
                await hub.changed.wait()
        plugin.advance(60)
        await gateway.step()
        hub.released.set()
        await gateway.settle()
        assert len(hub.starts) == 2
        await gateway.aclose()
        await plugin.aclose()
