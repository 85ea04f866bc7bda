"""The ledger from outside: REST, the client, metrics."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from scheduler_bridge.errors import NotAllowed, Refused
from scheduler_bridge.metrics import Metrics
from scheduler_bridge.model.teams import Proposal, Team
from scheduler_bridge.model.usage import Bucket, Grouping, UsageQuestion
from scheduler_bridge.store.opening import open_memory
from tests.builders.ledger import Site, budgets
from tests.builders.scheduler import TOKENS, job, placed, served, session
from tests.builders.teams import team
from tests.fakes.scheduler_hubs import fake_hub, hub_user
from tests.scheduler_bridge.test_auth import World


@pytest.fixture
async def world() -> AsyncIterator[World]:
    users = {
        "alice-token": hub_user("alice", groups=["vision"]),
        "bob-token": hub_user("bob"),
    }
    async with fake_hub(users=users) as hub, served(gpus=3, hub_api_url=hub.url) as (_, url):
        made = World(hub, url)
        created = (team("vision", share_percent=50, price_per_gpu_hour=1.5), team("x"))
        await made("admin").change_teams(Proposal("set up", created=created), actor="ada")
        for user, name in (("alice", "vision"), ("carol", "vision"), ("bob", "default")):
            await placed(made("admin"), session(user, team=name), key=user)
        yield made
        for client in made.clients:
            await client.aclose()


async def users_seen(world: World, token: str) -> list[str]:
    seen = await world(token).usage(UsageQuestion(group_by=Grouping.USER))
    return [it.user for it in seen.lines]


async def test_users_see_their_teams_and_administrators_all(world: World) -> None:
    assert await users_seen(world, "admin") == ["alice", "bob", "carol"]
    assert await users_seen(world, "alice-token") == ["alice", "carol"]
    assert await users_seen(world, "bob-token") == ["bob"]
    seen = await world("alice-token").usage(UsageQuestion())
    assert [it.team for it in seen.lines] == ["vision"]
    assert [it.team for it in seen.balances] == ["vision"]
    assert seen.fleet is None
    line = seen.lines[0]
    assert line.delivered > 0 and line.owed is not None
    assert line.cost == pytest.approx(line.delivered / 3600 * 1.5)
    everything = await world("admin").usage(UsageQuestion())
    assert [it.team for it in everything.lines] == ["default", "vision"]
    assert everything.fleet is not None and everything.fleet.capacity > 0


async def test_who_may_read_nothing_is_told_nothing(world: World) -> None:
    with pytest.raises(NotAllowed):
        await world("scheduler").usage(UsageQuestion())


async def test_times_and_pieces_reach_the_scheduler(world: World) -> None:
    client = world("admin")
    now = (await client.usage(UsageQuestion())).until
    day = UsageQuestion(now - 86400.0, now, Grouping.TAG, Bucket.HOUR)
    seen = await client.usage(day)
    assert (seen.since, seen.until) == (now - 86400, now)
    assert {it.tag for it in seen.lines} == {"unallocated", "interruptible"}
    with pytest.raises(Refused, match="before"):
        await client.usage(UsageQuestion(now, now - 3600))
    for at in (float("nan"), 1e18):
        with pytest.raises(Refused, match="no time"):
            await client.usage(UsageQuestion(since=at))


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("from=2026-01-01&to=2026-01-02T12:30", 200),
        ("from=2026-01-01T00:00:00%2B02:00&to=2026-01-02&bucket=day&group_by=project", 200),
        ("from=1700000000&to=1700003600", 200),
        ("from=yesterday", 422),
        ("group_by=colour", 422),
        ("bucket=minute", 422),
        ("from=2026-01-02&to=2026-01-01", 422),
    ],
)
async def test_what_may_be_asked(world: World, query: str, status: int) -> None:
    async with httpx.AsyncClient() as client:
        answer = await client.get(
            f"{world.url}/api/v1/usage?{query}",
            headers={"Authorization": f"Bearer {TOKENS['admin']}"},
        )
    assert answer.status_code == status, answer.text
    if status == 422:
        assert answer.json()["message"]


async def test_without_a_token_nothing_is_told(world: World) -> None:
    with pytest.raises(NotAllowed):
        await world("nobody-token").usage(UsageQuestion())


def test_metrics_tell_gpu_time_by_tag_and_balances() -> None:
    site = Site(open_memory())
    metrics = Metrics(site.scheduler.books, site.ledger)
    budgets(site, Team("a", share_percent=100))
    workload = site.run(site.submit(job("u", 2, team="a"), "k"))
    assert workload.lease is not None
    site.clock.advance(50)
    for _ in range(2):
        lines = metrics.text().decode().splitlines()
        assert 'hubernate_gpu_seconds_total{tag="unallocated",team="a"} 100.0' in lines
        assert 'hubernate_gpu_seconds_total{tag="interruptible",team="a"} 100.0' in lines
        assert 'hubernate_team_balance_gpu_seconds{team="a"} 0.0' in lines
        assert "hubernate_ledger_mismatch_gpus 0.0" in lines
        site.ledger.settle()
    site.start()
    again = Metrics(site.scheduler.books, site.ledger).text().decode()
    assert "gpu_seconds_total{" not in again, "counters begin with the program"
    site.scheduler.close()
