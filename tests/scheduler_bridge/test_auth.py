"""Who may do what, over real HTTP, with a Hub that vouches for users."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from scheduler_bridge.api.auth import BadTokenFile, HubUsers, read_tokens
from scheduler_bridge.client import SchedulerClient
from scheduler_bridge.errors import Conflict, NotAllowed, NotFound, Refused, Unavailable
from scheduler_bridge.model.phases import Desired, Phase
from scheduler_bridge.model.workload import Idleness, Workload
from tests.builders.scheduler import TOKENS, job, placed, served, session
from tests.fakes.scheduler_hubs import FakeHub, fake_hub, hub_user


class World:
    """A served scheduler and clients by token."""

    def __init__(self, hub: FakeHub, url: str) -> None:
        self.hub, self.url = hub, url
        self.clients: list[SchedulerClient] = []

    def __call__(self, token: str) -> SchedulerClient:
        client = SchedulerClient(self.url, TOKENS.get(token, token))
        self.clients.append(client)
        return client


@pytest.fixture
async def world() -> AsyncIterator[World]:
    users = {
        "alice-token": hub_user("alice", groups=["red"]),
        "bob-token": hub_user("bob"),
        "root-token": hub_user("root", admin=True),
        "root-notebook": hub_user("root", admin=True, scopes=["access:services!service=hubernate"]),
        "elsewhere": hub_user("alice", scopes=["read:users:name!user"]),
        "a-service": {**hub_user("x"), "kind": "service"},
    }
    async with fake_hub(users=users) as hub, served(hub_api_url=hub.url) as (_, url):
        made = World(hub, url)
        yield made
        for client in made.clients:
            await client.aclose()


async def alices_session(world: World) -> Workload:
    """With its place."""
    return await placed(world("hub"), session("alice"), key="session:h/alice/")


async def refused(call: Any, error: type[Exception] = NotAllowed) -> None:
    with pytest.raises(error):
        await call


async def test_nobody_without_a_token(world: World) -> None:
    async with httpx.AsyncClient(base_url=world.url) as client:
        for path in ("/api/v1/workloads", "/api/v1/fleet", "/api/v1/events"):
            answer = await client.get(path)
            assert answer.status_code == 401
            assert answer.json()["code"] == "not_allowed"
        basic = {"Authorization": "Basic x"}
        assert (await client.get("/api/v1/fleet", headers=basic)).status_code == 401


@pytest.mark.parametrize("token", ["unknown", "elsewhere", "a-service"])
async def test_tokens_that_prove_nothing(world: World, token: str) -> None:
    await refused(world(token).fleet())


async def test_a_service_of_no_known_name_may_do_nothing(world: World) -> None:
    workload = await alices_session(world)
    client = world("scheduler")
    assert await client.list() == ()
    await refused(client.get(workload.id), NotFound)
    await refused(client.take(workload.id))


async def test_users_see_their_own_work_only(world: World) -> None:
    hers = await alices_session(world)
    his = await world("bob-token").submit(job("bob", gpus=0), key="b")
    alice, bob, root = world("alice-token"), world("bob-token"), world("root-token")
    assert [w.id for w in await alice.list()] == [hers.id]
    assert [w.id for w in await bob.list()] == [his.id]
    assert await bob.list(user="alice") == ()
    assert [w.id for w in await root.list()] == [hers.id, his.id]
    for call in (
        bob.get(hers.id),
        bob.why(hers.id),
        bob.history(hers.id),
        bob.wait(hers.id, version=0, timeout=0),
        bob.desire(hers.id, Desired.STOPPED, actor="bob", reason=""),
    ):
        await refused(call, NotFound)
    assert await bob.find(hers.key) is None
    assert (await alice.get(hers.id)).id == hers.id


async def test_users_decide_about_their_own_work_in_their_own_name(world: World) -> None:
    hers = await alices_session(world)
    alice = world("alice-token")
    gone = await alice.desire(hers.id, Desired.STOPPED, actor="somebody else", reason="done")
    assert gone.phase is Phase.STOPPED
    assert {e.actor for e in await alice.history(hers.id) if e.kind == "desired"} == {"alice"}


async def test_users_submit_jobs_as_themselves_only(world: World) -> None:
    bob = world("bob-token")
    mine = await bob.submit(job("bob"), key="job:bob/1")
    assert mine.spec.user == "bob"
    await refused(bob.submit(job("alice"), key="x"))
    await refused(bob.submit(session("bob"), key="x"))
    await refused(bob.submit(job("bob"), key="session:h/bob/"), Refused)
    await refused(bob.submit(job("bob", team="red"), key="x"))
    in_team = await world("alice-token").submit(job("alice", team="red", gpus=0), key="y")
    assert in_team.spec.team == "red"
    await refused(world("alice-token").submit(job("alice"), key="job:bob/1"), Conflict)


async def test_users_do_not_touch_what_is_the_services(world: World) -> None:
    hers = await alices_session(world)
    alice = world("alice-token")
    await refused(alice.take(hers.id))
    await refused(alice.set_idleness(hers.id, Idleness()))
    await refused(alice.pause("all", seconds=1, reason="x", actor="x"))


async def test_users_see_what_is_free_but_not_whose_the_rest_is(world: World) -> None:
    hers = await alices_session(world)
    assert set((await world("bob-token").fleet()).holders.values()) == {"other"}
    assert set((await world("alice-token").fleet()).holders.values()) == {hers.id}
    assert set((await world("hub").fleet()).holders.values()) == {hers.id}


async def test_users_hear_of_their_own_work_only(world: World) -> None:
    await alices_session(world)
    await world("bob-token").submit(job("bob", gpus=0), key="b")
    stream = world("bob-token").events()
    first = await anext(stream)
    assert first.user == "bob"
    await stream.aclose()  # type: ignore[attr-defined]


async def test_a_user_called_like_a_service_is_not_that_service(world: World) -> None:
    world.hub.users["hub-user-token"] = hub_user("hub")
    client = world("hub-user-token")
    assert await client.list() == ()
    hers = await alices_session(world)
    await refused(client.get(hers.id), NotFound)
    await refused(client.take(hers.id))


async def test_an_administrators_notebook_is_no_administrator(world: World) -> None:
    hers = await alices_session(world)
    await refused(world("root-notebook").get(hers.id), NotFound)
    assert (await world("root-token").get(hers.id)).id == hers.id


async def test_the_reclaimer_suspends_and_does_no_more(world: World) -> None:
    hers = await alices_session(world)
    hub, reclaimer = world("hub"), world("reclaimer")
    grant = await hub.take(hers.id)
    await hub.move(grant.lease.id, grant.credential, Phase.RUNNING, cause="up")
    await reclaimer.set_idleness(hers.id, Idleness(since=1.0))
    wanted = await reclaimer.desire(hers.id, Desired.SUSPENDED, actor="reclaimer", reason="idle")
    assert wanted.desired is Desired.SUSPENDED
    back = await reclaimer.desire(hers.id, Desired.RUNNING, actor="reclaimer", reason="busy")
    assert back.desired is Desired.RUNNING
    await refused(reclaimer.desire(hers.id, Desired.STOPPED, actor="r", reason=""))
    await refused(reclaimer.submit(session("bob"), key="x"))
    await refused(reclaimer.take(hers.id))
    await refused(reclaimer.pause("all", seconds=1, reason="x", actor="x"))


async def test_the_hub_has_nothing_to_do_with_jobs(world: World) -> None:
    his = await world("bob-token").submit(job("bob"), key="b")
    hub = world("hub")
    await refused(hub.submit(job("bob"), key="c"))
    await refused(hub.desire(his.id, Desired.STOPPED, actor="h", reason=""))
    await refused(hub.take(his.id))
    await refused(hub.pause("all", seconds=1, reason="x", actor="x"))


async def test_a_lease_credential_opens_nothing_else(world: World) -> None:
    hers = await alices_session(world)
    grant = await world("hub").take(hers.id)
    await refused(world(grant.credential).get(hers.id))


async def test_the_hub_is_asked_once_a_minute_about_a_token() -> None:
    now = 0.0
    async with fake_hub(users={"t": hub_user("alice")}) as hub:
        users = HubUsers(hub.url, monotonic=lambda: now)
        for _ in range(3):
            assert (await users.caller("t")).user == "alice"
        assert hub.questions == 1
        now = 61.0
        hub.users.clear()
        for _ in range(2):
            with pytest.raises(NotAllowed):
                await users.caller("t")
        assert hub.questions == 2
        now = 70.0
        hub.users["t"] = hub_user("alice")
        assert (await users.caller("t")).user == "alice"
        await users.aclose()


@pytest.mark.parametrize("status", [500, 503, 302])
async def test_a_hub_that_is_down_is_no_refusal(status: int) -> None:
    async with fake_hub(user_status=status) as hub:
        users = HubUsers(hub.url)
        with pytest.raises(Unavailable):
            await users.caller("t")
        await users.aclose()
    users = HubUsers("http://127.0.0.1:1/hub/api")
    with pytest.raises(Unavailable):
        await users.caller("t")
    await users.aclose()


@pytest.mark.parametrize(
    ("content", "mode", "named"),
    [
        ('{"hub": "0123456789abcdef"}', 0o644, "chmod 600"),
        ("not json", 0o600, "not JSON"),
        ('["x"]', 0o600, "16 characters"),
        ('{"hub": "short"}', 0o600, "16 characters"),
        ('{"hub": "0123456789abcdef", "admin": "0123456789abcdef"}', 0o600, "the same token"),
    ],
)
def test_bad_token_files(tmp_path: Path, content: str, mode: int, named: str) -> None:
    path = tmp_path / "tokens.json"
    path.write_text(content)
    path.chmod(mode)
    with pytest.raises(BadTokenFile, match=named):
        read_tokens(path)


async def post(world: World, path: str, content: bytes, **headers: str) -> httpx.Response:
    headers = {
        "Authorization": f"Bearer {TOKENS['admin']}",
        "Content-Type": "application/json",
        **headers,
    }
    async with httpx.AsyncClient(base_url=world.url) as client:
        return await client.post(path, content=content, headers=headers)


async def test_bodies_above_the_limit_are_refused(world: World) -> None:
    body = json.dumps({"key": "k" * 2**20}).encode()
    answer = await post(world, "/api/v1/workloads", body)
    assert (answer.status_code, answer.json()["code"]) == (413, "refused")
    assert "1048576 bytes" in answer.json()["message"]


async def test_bodies_of_unknown_length_are_counted(world: World) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield b" " * 2**15

    async with httpx.AsyncClient(base_url=world.url) as client:
        answer = await client.post(
            "/api/v1/workloads",
            content=chunks(),
            headers={
                "Authorization": f"Bearer {TOKENS['admin']}",
                "Content-Type": "application/json",
            },
        )
    assert answer.status_code == 413


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b"{", "JSON"),
        (b"[]", "body"),
        (b'{"key":"k","spec":{"kind":"party","name":"a","user":"a"}}', "spec.kind"),
        (b'{"key":"k","spec":{"kind":"job","name":"a","user":"a","gpus":1.5}}', "spec.gpus"),
        (b'{"key":"k","spec":{"kind":"job","name":"a","user":"a","priority":9}}', "spec.priority"),
    ],
)
async def test_wrong_bodies_are_told_field_and_limit(world: World, body: bytes, named: str) -> None:
    answer = await post(world, "/api/v1/workloads", body)
    assert answer.status_code == 422
    assert named in answer.json()["message"]


async def test_a_mistake_never_quotes_what_was_sent(world: World) -> None:
    answer = await post(world, "/api/v1/leases/l-1/heartbeat", b'{"report": "my-secret"}')
    assert answer.status_code == 422
    assert "my-secret" not in answer.text


async def test_the_hubs_prefix_leads_to_the_same_routes(world: World) -> None:
    client = world("hub")
    behind = SchedulerClient(f"{world.url}/services/hubernate/", TOKENS["hub"])
    workload = await behind.submit(session(), key="k")
    assert (await client.get(workload.id)).id == workload.id
    await behind.aclose()
    async with httpx.AsyncClient(base_url=world.url) as plain:
        assert (await plain.get("/services/hubernate/healthz")).status_code == 200
        assert (await plain.get("/services/hubernatex/healthz")).status_code == 404
        assert (await plain.get("/services/hubernate/metrics")).status_code == 404
        schema = (await plain.get("/openapi.json")).json()
    assert "/api/v1/workloads/{workload_id}/why" in schema["paths"]
