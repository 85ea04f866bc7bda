"""How often a user may ask, and who is not counted."""

from __future__ import annotations

import pytest

from scheduler_bridge.api.rates import Rate, Rates
from scheduler_bridge.client import SchedulerClient
from scheduler_bridge.errors import TooOften
from scheduler_bridge.model.phases import Phase
from scheduler_bridge.model.workload import Report
from tests.builders.scheduler import TOKENS, placed, served, session
from tests.fakes.scheduler_hubs import fake_hub, hub_user


class Watch:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def admitted(rates: Rates, name: str, times: int) -> int:
    """How many of so many requests in a row are heard."""
    heard = 0
    for _ in range(times):
        try:
            rates.count(name)
        except TooOften:
            continue
        heard += 1
    return heard


@pytest.mark.parametrize(
    ("rest", "heard"), [(0.0, 0), (0.4, 0), (0.5, 1), (1.0, 2), (2.4, 4), (1000.0, 5)]
)
def test_a_bucket_fills_evenly_up_to_its_size(rest: float, heard: int) -> None:
    watch = Watch()
    rates = Rates(Rate(per_second=2.0, burst=5), watch)
    assert admitted(rates, "alice", 20) == 5
    watch.now += rest
    assert admitted(rates, "alice", 20) == heard


def test_one_users_bucket_is_nobody_elses() -> None:
    rates = Rates(Rate(per_second=1.0, burst=1), Watch())
    assert [admitted(rates, name, 3) for name in ("alice", "bob", "alice")] == [1, 1, 0]


def test_who_asks_on_and_on_is_heard_at_the_rate_all_the_same() -> None:
    watch = Watch()
    rates = Rates(Rate(per_second=1.0, burst=1), watch)
    heard = 0
    for _ in range(100):
        watch.now += 0.1
        heard += admitted(rates, "alice", 1)
    assert heard == 10


def test_no_rate_is_no_limit() -> None:
    assert admitted(Rates(Rate(per_second=0.0, burst=1), Watch()), "alice", 50) == 50


async def test_a_user_is_told_how_long_to_wait_over_all_tokens() -> None:
    watch = Watch()
    rates = Rates(Rate(per_second=0.5, burst=2), watch)
    users = {"one": hub_user("alice"), "two": hub_user("alice"), "bobs": hub_user("bob")}
    async with fake_hub(users=users) as hub, served(hub_api_url=hub.url, rates=rates) as (_, url):
        one, two, bob = (SchedulerClient(url, token) for token in ("one", "two", "bobs"))
        await one.fleet()
        await two.fleet()
        with pytest.raises(TooOften, match=r"2 requests at once and 0\.5 a second") as caught:
            await two.fleet()
        assert caught.value.retry_after == 2 and "Wait 2 s" in caught.value.remedy
        await bob.fleet()
        watch.now += caught.value.retry_after
        await one.fleet()
        for client in (one, two, bob):
            await client.aclose()


async def test_services_and_heartbeats_are_not_counted() -> None:
    rates = Rates(Rate(per_second=0.001, burst=1), Watch())
    async with served(rates=rates) as (_, url):
        hub = SchedulerClient(url, TOKENS["hub"])
        workload = await placed(hub, session("hub"), key="session:h/hub/")
        grant = await hub.take(workload.id)
        for _ in range(5):
            await hub.fleet()
            report = Report(grant.lease.epoch, Phase.STARTING)
            await hub.heartbeat(grant.lease.id, grant.credential, report)
        await hub.aclose()
