"""Who may ask what would come of work, over HTTP: people for themselves, and not without end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from scheduler_bridge import wire
from scheduler_bridge.api.callers import Caller, service, user
from scheduler_bridge.api.rates import Rate, Rates
from scheduler_bridge.api.service import create_service
from scheduler_bridge.engine.settings import ManualClock, Settings
from scheduler_bridge.inprocess import InProcessScheduler
from scheduler_bridge.model.outlook import Variant
from scheduler_bridge.model.workload import WorkloadSpec
from scheduler_bridge.policy.values import Rules
from tests.builders.scheduler import job, session


class Doorman:
    """Believes who somebody says they are."""

    async def caller(self, header: str | None) -> Caller:
        name = header or ""
        if name in ("admin", "hub", "reclaimer"):
            return service(name)
        return user(name, groups=frozenset({"red", "small"}), admin=False)


class House:
    """A scheduler with two GPUs, its service and its clock."""

    def __init__(self) -> None:
        rules = Rules(team_limits={"default": 2, "small": 1})
        self.plugin = InProcessScheduler(
            gpus=2, clock=ManualClock(), settings=Settings(rules=rules)
        )
        rates = Rates(Rate(per_second=1.0, burst=5), self.plugin.clock.now)
        app = create_service(self.plugin.engine, Doorman(), rates=rates)  # type: ignore[arg-type]
        transport = httpx.ASGITransport(app)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://house")

    async def ask(self, who: str, spec: WorkloadSpec, *variants: Variant) -> httpx.Response:
        body = wire.WHAT_IF.dump_json(wire.WhatIfBody(spec, variants))
        headers = {"Authorization": who, "Content-Type": "application/json"}
        return await self.http.post("/api/v1/what-if", content=body, headers=headers)


@pytest.fixture
async def house() -> AsyncIterator[House]:
    made = House()
    try:
        yield made
    finally:
        await made.http.aclose()
        await made.plugin.aclose()


def told(answer: httpx.Response) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_user_asks_for_themselves_and_need_not_say_so(house: House) -> None:
    for asked in (job("bob"), job(""), session("bob")):
        found = told(await house.ask("bob", asked))
        assert {each["spec"]["user"] for each in found} == {"bob"}
        assert found[0]["outcome"] == "now"


@pytest.mark.parametrize(
    ("spec", "variants", "words"),
    [
        (job("ada"), (), "user: bob may ask for bob only"),
        (job("bob", team="blue"), (), "team: bob is not in 'blue'"),
        (job("bob"), (Variant(team="blue"),), "team: bob is not in 'blue'"),
    ],
)
async def test_nobody_asks_for_others(
    house: House, spec: WorkloadSpec, variants: tuple[Variant, ...], words: str
) -> None:
    answer = await house.ask("bob", spec, *variants)
    assert answer.status_code == 403 and words in answer.json()["message"]


async def test_services_ask_for_whom_they_may_submit(house: House) -> None:
    assert told(await house.ask("hub", session("ada")))[0]["outcome"] == "now"
    assert told(await house.ask("admin", job("ada", team="blue")))[0]["outcome"] == "now"
    assert (await house.ask("reclaimer", job("ada"))).status_code == 403


async def test_what_would_be_refused_is_an_answer_and_nonsense_is_none(house: House) -> None:
    (found, *_) = told(await house.ask("bob", job("bob", gpus=3)))
    assert found["outcome"] == "refused" and "at most 2 GPUs" in found["text"]
    found = told(await house.ask("bob", job("bob"), Variant(min_runtime_seconds=-1.0)))
    assert found[1]["outcome"] == "refused" and "min_runtime_seconds" in found[1]["text"]
    answer = await house.http.post(
        "/api/v1/what-if", json={"spec": 5}, headers={"Authorization": "bob"}
    )
    assert answer.status_code == 422


async def test_who_asks_too_often_is_not_heard(house: House) -> None:
    answers = [await house.ask("bob", job("bob")) for _ in range(6)]
    assert [each.status_code for each in answers] == [200] * 5 + [429]
    assert (await house.ask("ada", job("ada"))).status_code == 200


async def test_the_users_other_teams_are_offered(house: House) -> None:
    engine = house.plugin.engine
    for key in ("runs", "waits"):
        waiting = engine.submit(job("bob", team="small"), key=key, actor="bob")
    assert engine.get(waiting.id).wait_reason.startswith("Team small may hold 1 GPU")
    answer = await house.http.get(
        f"/api/v1/workloads/{waiting.id}/why", headers={"Authorization": "bob"}
    )
    changes = told(answer)["changes"]
    assert [(each["kind"], each["values"]) for each in changes] == [("team", {"team": "red"})]
    assert changes[0]["text"] == "the share of team red instead of small's"
