"""Several sessions from one snapshot, through the real Hub, proxy and CRIU."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from hub_config.demo.browserless import Researcher
from hub_config.demo.stage import Stage
from snapshot.model import StoreSettings
from snapshot.repository import open_repository
from spawner.local_order import ORDER_FILE
from spawner.site import read_site
from tests.e2e.scenes import (
    end,
    open_with_a_secret,
    read_secret,
    resume,
    shown,
    suspend,
    until,
    until_shown,
    workload,
)

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.criu,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(300),
]

OPEN_FILES = """
import os, tempfile
draft = tempfile.NamedTemporaryFile("w+", delete=False)
draft.write("before the fork"); draft.flush()
notes = open(os.path.expanduser("~/notes.txt"), "a"); notes.write("one line"); notes.flush()
first, second = (os.path.expanduser(f"~/{name}") for name in ("first", "second"))
deleted = open(first, "w+"); deleted.write("under no name"); deleted.flush()
os.link(first, second); os.unlink(first)
print(draft.name)
"""
READ_DELETED = "deleted.seek(0); print(deleted.read())"
WRITE_DRAFT = "_ = draft.write(', and left'); draft.flush(); print('written')"
READ_DRAFT = "draft.seek(0); print(draft.read())"


def store(stage: Stage) -> StoreSettings:
    return read_site(stage.state / "site.json").store


def token_of(stage: Stage, workload_id: str) -> str:
    """The API token that a session's supervisor was told last."""
    order = json.loads((stage.state / "run" / workload_id / ORDER_FILE).read_text())
    return str(order["environment"]["JUPYTERHUB_API_TOKEN"])


async def status(user: Researcher, server: str, token: str) -> int:
    """What a server says to a token."""
    async with httpx.AsyncClient() as client:
        answer = await client.get(
            f"{user.server_url(server)}api/status", headers={"Authorization": f"token {token}"}
        )
    return answer.status_code


async def user_of(stage: Stage, token: str) -> int:
    """Whether the Hub knows a token."""
    async with httpx.AsyncClient() as client:
        answer = await client.get(
            f"{stage.url}/hub/api/user", headers={"Authorization": f"token {token}"}
        )
    return answer.status_code


async def run(user: Researcher, kernel_id: str, server: str, code: str) -> str:
    """What a cell prints first. IPython may add, once in each fork, that another session has used
    its number in the history, which they share, and that it goes on with a number of its own."""
    async with user.kernel(kernel_id, server) as kernel:
        return (await kernel.run(code)).splitlines()[0]


async def count(user: Researcher, kernel_id: str, server: str) -> str:
    return await run(user, kernel_id, server, "steps += 1; print(steps)")


async def test_two_forks_and_the_original_live_side_by_side(
    two_gpus: Stage, alice: Researcher
) -> None:
    kernel_id, word = await open_with_a_secret(alice, "cpu")
    async with alice.kernel(kernel_id) as kernel:
        await kernel.run("steps = 0")
        draft = await kernel.run(OPEN_FILES)
        assert draft.startswith("/tmp/")
    original = str((await workload(two_gpus, "alice"))["id"])
    first_token = token_of(two_gpus, original)
    await suspend(alice)

    assert await alice.fork("left") == "left"
    assert await alice.fork("") == "fork-1"
    assert await user_of(two_gpus, first_token) == 403, "the copies hold this token"
    servers = ["left", "fork-1"]
    await asyncio.gather(*(alice.until_ready(server) for server in servers))
    assert (await shown(alice))["phase"] == "suspended"
    for server in servers:
        assert await run(alice, kernel_id, server, "print(word)") == word
        assert await run(alice, kernel_id, server, READ_DRAFT) == "before the fork"
        assert await run(alice, kernel_id, server, READ_DELETED) == "under no name"

    # the same kernel id, and each its own kernel
    assert await count(alice, kernel_id, "left") == "1"
    assert await count(alice, kernel_id, "left") == "2"
    assert await count(alice, kernel_id, "fork-1") == "1"
    await resume(alice)
    assert await count(alice, kernel_id, "") == "1"
    assert await run(alice, kernel_id, "", READ_DELETED) == "under no name"
    assert await run(alice, kernel_id, "left", WRITE_DRAFT) == "written"
    assert await run(alice, kernel_id, "", READ_DRAFT) == "before the fork"

    everybody = ["", *servers]
    ids = {s: str((await workload(two_gpus, "alice", server=s))["id"]) for s in everybody}
    tokens = {s: token_of(two_gpus, ids[s]) for s in everybody}
    assert len({*tokens.values(), first_token}) == 4
    for server in everybody:
        for owner, token in tokens.items():
            assert await status(alice, server, token) == (200 if owner == server else 403)
        assert await status(alice, server, first_token) == 403

    for server in everybody:
        await suspend(alice, server=server)
    repository = open_repository(store(two_gpus))
    for server in everybody:
        stored = repository.current("alice", ids[server])
        assert stored is not None and stored.key.session == ids[server]
        assert stored.stored_bytes < stored.memory_bytes / 4, "the rest is shared"
    home = two_gpus.state / "homes" / "alice"
    assert not list(home.glob("link_remap*")), "what CRIU needs does not show"
    for server in everybody:
        await resume(alice, server=server)
        assert await run(alice, kernel_id, server, "print(word)") == word
    assert await count(alice, kernel_id, "left") == "3"
    assert await count(alice, kernel_id, "fork-1") == "2"
    assert await count(alice, kernel_id, "") == "2"
    assert await run(alice, kernel_id, "left", READ_DRAFT) == "before the fork, and left"
    for server in everybody:
        await end(alice, server=server)


async def test_a_fork_outlives_the_session_that_it_comes_from(
    two_gpus: Stage, bob: Researcher
) -> None:
    kernel_id, word = await open_with_a_secret(bob)
    await suspend(bob)
    forked = json.loads(await two_gpus.hubernate("resume", "--fork", "bob", "second", "--json"))
    assert (forked["spec"]["user"], forked["spec"]["server"]) == ("bob", "second")
    assert forked["phase"] == "running"
    assert await run(bob, kernel_id, "second", "print(word)") == word
    await suspend(bob, server="second")
    await end(bob)
    await until_shown(bob, "suspended", server="second")
    await resume(bob, server="second")
    assert await run(bob, kernel_id, "second", "print(word)") == word
    await end(bob, server="second")


async def test_only_the_owner_forks_and_only_what_is_suspended(
    two_gpus: Stage, alice: Researcher, bob: Researcher
) -> None:
    kernel_id, word = await open_with_a_secret(alice, "cpu")
    fork = f"{two_gpus.url}/hub/hubernate/sessions/fork"
    answer = await alice.request("POST", fork, json={"name": "early"}, expect=(409,))
    assert "Only a suspended session" in answer.text
    await suspend(alice)
    for body in ({"user": "alice", "name": "stolen"}, {"user": "nobody", "name": "stolen"}):
        await bob.request("POST", fork, json=body, expect=(403,))
    await bob.request("POST", fork, json={"name": "mine"}, expect=(409,))
    await alice.request("POST", fork, json={"name": "Not A Name"}, expect=(400,))
    await alice.request("POST", fork, json={"server": "none"}, expect=(404,))

    async def nothing_was_left() -> bool:
        sessions = await two_gpus.hubernate_json("sessions", "list", "--json")
        return {each["spec"]["server"] for each in sessions} == {""}

    await until(nothing_was_left, timeout=5, what="no half a fork")
    await resume(alice)
    assert await read_secret(alice, kernel_id) == word
    await end(alice)
