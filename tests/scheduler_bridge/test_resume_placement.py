"""What a suspended session demands, from the report of its supervisor to the click on Resume."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from scheduler_bridge.agent.facts import read_facts
from scheduler_bridge.client import SchedulerClient
from scheduler_bridge.engine.scheduler import Scheduler
from scheduler_bridge.errors import Refused
from scheduler_bridge.model.phases import Desired, Phase
from scheduler_bridge.model.workload import Idleness, Workload
from tests.builders.scheduler import TOKENS, placed, served, session, snapshot
from tests.scheduler_bridge.test_service_process import Service, until

OLD, NEW = {"gpu_driver": "580.65.06"}, {"gpu_driver": "590.10"}
WORDS = "it needs NVIDIA driver 580.65.06 (here has 590.10)."


class Bench:
    """A scheduler behind HTTP, and one session that was suspended under the old driver."""

    def __init__(self, scheduler: Scheduler, client: SchedulerClient) -> None:
        self.scheduler, self.client = scheduler, client

    async def suspended(self, key: str = "k") -> Workload:
        self.scheduler.learn("here", OLD)
        workload = await placed(self.client, session(), key=key)
        grant = await self.client.take(workload.id)
        lease, credential = grant.lease.id, grant.credential
        await self.client.move(lease, credential, Phase.RUNNING, cause="up")
        await self.desire(workload, Desired.SUSPENDED)
        await self.client.move(lease, credential, Phase.SUSPENDING, cause="asked")
        shot = replace(snapshot(), constraints=OLD)
        return await self.client.move(
            lease, credential, Phase.SUSPENDED, cause="stored", snapshot=shot
        )

    async def desire(self, workload: Workload, desired: Desired) -> Workload:
        return await self.client.desire(workload.id, desired, actor="alice", reason="a click")

    async def until(self, workload: Workload, *phases: Phase) -> Workload:
        now = await self.client.get(workload.id)
        while now.phase not in phases:
            now = await self.client.wait(workload.id, version=now.version, timeout=5)
        return now


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with served(gpus=1) as (scheduler, url):
        client = SchedulerClient(url, TOKENS["hub"])
        try:
            yield Bench(scheduler, client)
        finally:
            await client.aclose()


async def test_what_cannot_come_back_is_said_before_the_click_and_refused_after_it(
    bench: Bench,
) -> None:
    workload = await bench.suspended()
    before = await bench.client.why(workload.id)
    assert before.resume and before.resume.now
    assert before.text.endswith("It would resume now.")

    bench.scheduler.learn("here", NEW)
    why = await bench.client.why(workload.id)
    assert why.resume and not why.resume.now and not why.resume.possible
    assert why.resume.reason == "no_node_fits"
    assert why.text.endswith(WORDS)
    assert "start fresh" in why.remedy
    with pytest.raises(Refused, match="No machine of this installation") as refusal:
        await bench.desire(workload, Desired.RUNNING)
    assert "start fresh" in refusal.value.remedy
    after = await bench.client.get(workload.id)
    assert (after.phase, after.desired, after.snapshot) == (
        Phase.SUSPENDED,
        Desired.SUSPENDED,
        workload.snapshot,
    )

    bench.scheduler.learn("here", OLD)
    await bench.desire(workload, Desired.RUNNING)
    assert (await bench.until(workload, Phase.RESUMING)).lease is not None


async def test_who_waits_already_is_told_and_placed_when_the_machine_fits_again(
    bench: Bench,
) -> None:
    workload = await bench.suspended()
    other = await placed(bench.client, session("bob"), key="other")
    await bench.desire(workload, Desired.RUNNING)
    await bench.until(workload, Phase.QUEUED)

    bench.scheduler.learn("here", NEW)
    await bench.client.desire(other.id, Desired.STOPPED, actor="bob", reason="done")
    now = await bench.client.get(workload.id)
    while not now.wait_reason.endswith(WORDS):
        now = await bench.client.wait(workload.id, version=now.version, timeout=5)
    assert now.phase is Phase.QUEUED
    assert (await bench.client.why(workload.id)).reason == "no_node_fits"

    bench.scheduler.learn("here", OLD)
    await bench.until(workload, Phase.RESUMING)


async def test_a_suspended_session_that_would_wait_says_for_what(bench: Bench) -> None:
    workload = await bench.suspended()
    await placed(bench.client, session("bob"), key="other")
    resume = (await bench.client.why(workload.id)).resume
    assert resume and not resume.now and resume.possible
    assert resume.text == "It needs 1 GPU and none of the fleet's is free."
    assert (await bench.client.get(workload.id)).position is None


async def test_who_would_have_to_yield_is_asked_by_the_click_only(bench: Bench) -> None:
    workload = await bench.suspended()
    other = await placed(bench.client, session("bob"), key="other")
    grant = await bench.client.take(other.id)
    await bench.client.move(grant.lease.id, grant.credential, Phase.RUNNING, cause="up")
    bench.scheduler.set_idleness(other.id, Idleness(since=1.0), actor="reclaimer")
    why = await bench.client.why(workload.id)
    assert why.resume and why.resume.reason == "being_freed"
    assert why.text.endswith("it would wait: Others would be asked to make room for it.")
    assert (await bench.client.get(other.id)).desired is Desired.RUNNING


async def test_a_program_that_was_replaced_is_noticed(tmp_path: Path) -> None:
    service, told = Service(tmp_path), tmp_path / "facts.json"
    told.write_text('{"criu": "4.1"}')
    service.configure(facts_command=["cat", str(told)], facts_seconds=0.2)
    try:
        await service.start()
        assert (await service.client.fleet()).nodes[0].facts["criu"] == "4.1"
        told.with_suffix(".new").write_text('{"criu": "4.2"}')
        told.with_suffix(".new").replace(told)

        async def noticed() -> bool:
            return (await service.client.fleet()).nodes[0].facts["criu"] == "4.2"

        await until(noticed)
    finally:
        await service.close()


async def test_the_service_asks_what_its_machine_is(tmp_path: Path) -> None:
    service = Service(tmp_path)
    told = {"kernel": "6.18.4", "criu": "4.2"}
    service.configure(facts_command=["{python}", "-c", f"print('''{json.dumps(told)}''')"])
    try:
        await service.start()
        (node,) = (await service.client.fleet()).nodes
        assert node.facts.items() >= told.items()
    finally:
        await service.close()


async def test_a_service_that_learns_nothing_of_its_machine_serves(tmp_path: Path) -> None:
    service = Service(tmp_path)
    service.configure(facts_command=["/no/such/program"])
    try:
        await service.start()
        (node,) = (await service.client.fleet()).nodes
        assert node.facts == {}
        assert "/no/such/program cannot be started" in service.log()
    finally:
        await service.close()


@pytest.mark.parametrize(
    "script", ["exit(3)", "print('no JSON')", "print('[1]')", "print('{\"criu\": 4}')"]
)
async def test_what_is_not_told_properly_is_not_taken_over(script: str) -> None:
    assert await read_facts([sys.executable, "-c", script]) is None
