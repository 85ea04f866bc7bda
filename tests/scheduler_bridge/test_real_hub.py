"""With a real Hub and its proxy: whose token it is, and starts by REST."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from scheduler_bridge.api.auth import HubUsers
from scheduler_bridge.client import SchedulerClient
from scheduler_bridge.engine.hub_gateway import HubGateway
from scheduler_bridge.engine.settings import ManualClock
from scheduler_bridge.errors import NotAllowed, NotFound
from scheduler_bridge.inprocess import InProcessScheduler
from tests.builders.hub import RunningHub, running_hub
from tests.builders.scheduler import job, served, session

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

_TOKEN = "the-token-of-the-scheduler"
_CONFIG = f"""
c.JupyterHub.services.append({{"name": "hubernate", "url": "http://127.0.0.1:1",
                               "api_token": "{_TOKEN}"}})
c.JupyterHub.load_roles += [
    {{"name": "hubernate-service", "services": ["hubernate"],
      "scopes": ["list:users", "read:servers", "start:servers"]}},
    {{"name": "user", "scopes": ["self", "access:services!service=hubernate"]}},
]
c.JupyterHub.spawner_class = "simple"
c.Spawner.cmd = ["sleep", "600"]
c.JupyterHub.tornado_settings = {{"slow_spawn_timeout": 0}}
c.JupyterHub.allow_named_servers = True
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hub(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningHub]:
    async with running_hub(tmp_path_factory.mktemp("hub"), _CONFIG) as running:
        yield running


def api_url(hub: RunningHub) -> str:
    return f"http://127.0.0.1:{hub.hub_api}/hub/api"


async def token(hub: RunningHub, user: str, **body: object) -> str:
    await hub.api("POST", f"/users/{user}")
    made = await hub.api("POST", f"/users/{user}/tokens", json=body)
    return str(made.json()["token"])


async def test_the_hub_vouches_for_its_users(hub: RunningHub) -> None:
    alices = await token(hub, "alice")
    narrow = await token(hub, "alice", scopes=["read:users:name!user"])
    async with served(hub_api_url=api_url(hub)) as (_, url):
        alice, bob = SchedulerClient(url, alices), SchedulerClient(url, await token(hub, "bob"))
        hers = await alice.submit(job("alice"), key="k")
        assert [w.id for w in await alice.list()] == [hers.id]
        with pytest.raises(NotFound):
            await bob.get(hers.id)
        for bad in (narrow, "nonsense", _TOKEN):
            stranger = SchedulerClient(url, bad)
            with pytest.raises(NotAllowed):
                await stranger.fleet()
            await stranger.aclose()
        await alice.aclose()
        await bob.aclose()


async def test_an_administrator_sees_all(hub: RunningHub) -> None:
    await hub.api("POST", "/users/root")
    await hub.api("PATCH", "/users/root", json={"admin": True})
    users = HubUsers(api_url(hub))
    assert (await users.caller(await token(hub, "root"))).sees_all
    assert not (await users.caller(await token(hub, "alice"))).sees_all
    await users.aclose()


@pytest.mark.parametrize("server", ["", "second"])
async def test_a_placed_session_is_started_at_the_hub(hub: RunningHub, server: str) -> None:
    await hub.api("POST", "/users/alice")
    plugin = InProcessScheduler(gpus=1, clock=ManualClock())
    gateway = HubGateway(plugin.engine, api_url(hub), _TOKEN)
    workload = await plugin.submit(session("alice", server=server), key="k")
    plugin.advance(3)
    await gateway.step()
    await gateway.settle()
    last = (await plugin.history(workload.id))[-1]
    assert last.evidence["accepted"], last.cause
    model = (await hub.api("GET", "/users/alice?include_stopped_servers")).json()
    assert server in model["servers"]
    suffix = f"servers/{server}" if server else "server"
    await hub.api("DELETE", f"/users/alice/{suffix}")
    await gateway.aclose()
    await plugin.aclose()
