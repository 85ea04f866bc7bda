"""The spawner in a real Hub behind its real proxy: what the Hub calls, keeps, deletes and shows."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.builders.hub import RunningHub, until

pytestmark = pytest.mark.asyncio(loop_scope="module")


class User:
    """Somebody who uses the Hub's REST API, one server at a time."""

    def __init__(self, hub: RunningHub, sessions: Path, name: str) -> None:
        self.hub, self.sessions, self.name = hub, sessions, name

    def _path(self, server: str) -> str:
        return f"/users/{self.name}/servers/{server}" if server else f"/users/{self.name}/server"

    async def start(self, server: str = "", **options: Any) -> httpx.Response:
        return await self.hub.api("POST", self._path(server), json=options or None)

    async def stop(self, server: str = "", **body: Any) -> httpx.Response:
        return await self.hub.api("DELETE", self._path(server), json=body or None)

    async def model(self, server: str = "") -> dict[str, Any]:
        return await self.hub.server(self.name, server)

    async def workload_id(self, server: str = "") -> str:
        return str((await self.model(server))["state"]["workload_id"])

    async def folder(self, server: str = "") -> Path:
        return self.sessions / await self.workload_id(server)

    async def token(self, server: str = "") -> str:
        order = json.loads((await self.folder(server) / "order.json").read_text())
        return str(order["environment"]["JUPYTERHUB_API_TOKEN"])

    async def pid(self, server: str = "") -> int:
        status = json.loads((await self.folder(server) / "status.json").read_text())
        return int(status["sandbox"]["pid"])

    async def until_ready(self, server: str = "") -> None:
        await until(lambda: self.hub.is_ready(self.name, server), what=f"{self.name}/{server}")

    async def until_stopped(self, server: str = "", seconds: float = 20) -> None:
        await until(lambda: self.hub.is_stopped(self.name, server), seconds=seconds, what=self.name)

    async def token_works(self, token: str) -> bool:
        answer = await self.hub.api("GET", "/user", token=token)
        return bool(answer.status_code == 200 and answer.json()["name"] == self.name)


_users = iter(range(1000))


@pytest_asyncio.fixture(loop_scope="module")
async def user(hub: RunningHub, sessions: Path) -> AsyncIterator[User]:
    """A new user, all of whose sessions are gone afterwards."""
    made = User(hub, sessions, f"user{next(_users)}")
    await hub.api("POST", f"/users/{made.name}")
    yield made
    await hub.remove(made.name)


@pytest_asyncio.fixture(loop_scope="module")
async def other(hub: RunningHub, sessions: Path) -> AsyncIterator[User]:
    made = User(hub, sessions, f"other{next(_users)}")
    await hub.api("POST", f"/users/{made.name}")
    yield made
    await hub.remove(made.name)


async def test_stop_suspends_and_start_brings_the_same_session_back_with_a_new_token(
    user: User,
) -> None:
    assert (await user.start(profile="gpu-2")).status_code == 201
    first, token = await user.workload_id(), await user.token()
    assert await user.token_works(token)
    assert (await user.stop()).status_code == 204
    assert await user.token_works(token), "it may be opened again before anything else"
    assert (await user.start()).status_code == 201
    assert await user.workload_id() == first
    assert await user.token() != token
    assert await user.token_works(await user.token())
    assert not await user.token_works(token), "whoever reads the snapshot has nothing of it"


async def test_a_session_gets_the_limits_of_its_profile_and_is_told_them(user: User) -> None:
    await user.start(profile="small")
    order = json.loads((await user.folder() / "order.json").read_text())
    assert order["limits"] == [2**28, 0.5]
    assert order["environment"]["MEM_LIMIT"] == str(2**28)
    assert order["environment"]["CPU_LIMIT"] == "0.5"
    await user.start("other", profile="cpu")
    order = json.loads((await user.folder("other") / "order.json").read_text())
    assert order["limits"] == [0, 0] and "MEM_LIMIT" not in order["environment"]


async def test_the_token_is_not_shown_to_those_who_may_read_state(user: User) -> None:
    await user.start(profile="cpu")
    answer = await user.hub.api("GET", f"/users/{user.name}")
    assert "sealed_token" in answer.text
    assert await user.token() not in answer.text
    database = (user.hub.folder / "hub.sqlite").read_bytes()
    assert (await user.token()).encode() not in database


def allowed_scopes(hub: RunningHub, user: str) -> list[str]:
    uri = f"file:{hub.folder}/hub.sqlite?mode=ro"
    with closing(sqlite3.connect(uri, uri=True)) as database:
        row = database.execute(
            "select allowed_scopes from oauth_clients where identifier = ?",
            (f"jupyterhub-user-{user}",),
        ).fetchone()
    return list(json.loads(row[0]))


async def test_after_a_resume_extra_scopes_can_still_be_given(user: User) -> None:
    await user.start(profile="cpu")
    before = allowed_scopes(user.hub, user.name)
    assert "custom:hubernate:test" in before
    await user.stop()
    await user.start()
    assert sorted(allowed_scopes(user.hub, user.name)) == sorted(before)


async def test_a_suspend_behind_the_hubs_back_is_heard_of_at_once(user: User) -> None:
    await user.start(profile="cpu")
    token = await user.token()
    (await user.folder() / "suspend").write_text("idle")
    await user.until_stopped(seconds=3)
    assert await user.token_works(token)


async def test_the_end_of_the_programs_is_an_end_and_its_token_goes(user: User) -> None:
    await user.start(profile="cpu")
    token, first = await user.token(), await user.workload_id()
    (await user.folder() / "stop").write_text("exit")
    await user.until_stopped(seconds=3)
    assert not await user.token_works(token)

    async def starts() -> bool:
        return (await user.start()).status_code == 201

    await until(starts)
    assert await user.workload_id() != first


async def test_a_dead_supervisor_is_replaced_and_the_hub_sees_no_stop(user: User) -> None:
    await user.start(profile="gpu-1")
    folder, pid = await user.folder(), await user.pid()
    (folder / "orphan").touch()
    await until((folder / "adopted").exists)
    assert (await user.model())["ready"]
    assert await user.pid() == pid
    assert (await user.stop()).status_code == 204
    assert not (await user.model())["ready"]


async def test_a_stop_finds_a_session_without_supervisor_and_suspends_it(user: User) -> None:
    await user.start(profile="gpu-1")
    token, folder = await user.token(), await user.folder()
    (folder / "orphan").touch()
    assert (await user.stop()).status_code == 204
    assert not (await user.model())["ready"]
    assert await user.token_works(token)
    assert (await user.start()).status_code == 201
    assert await user.token_works(await user.token())
    assert not await user.token_works(token)


async def test_a_session_that_moves_to_another_port_is_found_there(user: User) -> None:
    await user.start(profile="cpu")
    folder, pid = await user.folder(), await user.pid()
    (folder / "move").touch()

    async def is_reached() -> bool:
        async with httpx.AsyncClient() as client:
            answer = await client.get(f"{user.hub.url}/user/{user.name}/api")
        return answer.text == str(pid)

    await until(lambda: not (folder / "move").exists())
    await until(is_reached)


async def test_a_failed_suspend_loses_nothing_and_the_hub_shows_the_session_again(
    user: User,
) -> None:
    await user.start(profile="gpu-1")
    pid, token = await user.pid(), await user.token()
    refuse = await user.folder() / "refuse"
    refuse.write_text("A connection to a database is open.")
    assert (await user.stop()).status_code == 204
    os.kill(pid, 0)
    assert await user.token_works(token)
    await user.until_ready()
    assert (await user.pid(), await user.token()) == (pid, token)
    assert await user.token_works(token)
    async with httpx.AsyncClient() as client:
        answer = await client.get(f"{user.hub.url}/user/{user.name}/api")
    assert answer.text == str(pid), "its route is back"
    refuse.unlink()
    left = await user.hub.api("GET", f"/users/{user.name}/tokens")
    assert "outlived" not in left.text, "the right to start it was taken back"


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({"profile": "gpu-99"}, "Profiles are: cpu, gpu-1"),
        ({"profile": "gpu-4"}, "Ask for at most 2"),
        ({"gpus": 3}, "Ask for at most 2"),
        ({"gpus": "x"}, "whole number"),
        ({"color": "red"}, "Unknown option"),
    ],
)
async def test_bad_options_by_rest_are_refused_at_once_with_the_limit(
    user: User, options: dict[str, Any], limit: str
) -> None:
    answer = await user.start(**options)
    assert answer.status_code == 400
    assert limit in answer.json()["message"]
    assert not (await user.model()).get("pending")


async def test_a_bad_size_by_rest_does_not_cost_the_suspended_session(user: User) -> None:
    await user.start(profile="gpu-1")
    first = await user.workload_id()
    await user.stop()
    answer = await user.start(profile="gpu-2")
    assert answer.status_code == 400 and "discard it" in answer.json()["message"]
    assert (await user.start()).status_code == 201, "a plain start means the old session again"
    assert await user.workload_id() == first


async def test_the_queue_tells_the_place_and_keeps_it(user: User, other: User) -> None:
    await other.start(profile="gpu-2")
    answer = await user.start(profile="gpu-1")
    assert answer.status_code == 503
    assert "You are next; your place is kept" in answer.json()["message"]
    await other.stop()
    assert (await user.start()).status_code == 201


async def test_many_refusals_do_not_count_against_the_hub(user: User, other: User) -> None:
    """`consecutive_failure_limit` is 3 here; a Hub that counted these would end."""
    await other.start(profile="gpu-2")
    for _ in range(3):
        assert (await user.start(profile="gpu-1")).status_code == 503
    for _ in range(3):
        assert (await user.start(profile="x")).status_code == 400
    told = user.hub.log_file.read_text()
    assert "consecutive spawn failures" not in told, "the Hub would end two seconds later"
    assert "consecutive spawns failed" not in told


async def pending_start(user: User, server: str) -> asyncio.Task[httpx.Response]:
    task = asyncio.create_task(user.start(server, profile="gpu-2"))

    async def is_pending() -> bool:
        return (await user.model(server)).get("pending") == "spawn"

    await until(is_pending)
    return task


async def test_cancel_of_a_named_server_in_the_queue_leaves_it_and_the_others(
    user: User, other: User
) -> None:
    await other.start(profile="gpu-2")
    await user.start(profile="cpu")
    start = await pending_start(user, "second")
    assert (await user.stop("second")).status_code in (202, 204)
    await start
    await user.until_stopped("second")
    assert (await user.model())["ready"], "the default server was not touched"
    await other.stop()
    third = await user.start("third", profile="gpu-2")
    assert third.status_code == 201, "the cancelled one holds no place and no GPU"


async def test_cancel_of_a_queued_resume_keeps_the_session(user: User, other: User) -> None:
    await user.start("named", profile="gpu-2")
    first, token = await user.workload_id("named"), await user.token("named")
    await user.stop("named")
    await other.start(profile="gpu-2")
    start = await pending_start(user, "named")
    await user.stop("named")
    await start
    assert await user.token_works(token)
    await other.stop()
    assert (await user.start("named")).status_code == 201
    assert await user.workload_id("named") == first
    assert await user.token_works(await user.token("named"))
    assert not await user.token_works(token)


async def test_progress_is_told_to_each_who_asks_even_late(user: User, other: User) -> None:
    await other.start(profile="gpu-2")
    start = await pending_start(user, "")

    async def story() -> list[str]:
        lines: list[str] = []
        async with (
            httpx.AsyncClient(timeout=30) as client,
            client.stream(
                "GET",
                f"{user.hub.url}/hub/api/users/{user.name}/server/progress",
                headers={"Authorization": f"token {user.hub.token}"},
            ) as answer,
        ):
            async for line in answer.aiter_lines():
                if line.startswith("data:"):
                    lines.append(json.loads(line[5:])["message"])
        return lines

    first, second = await asyncio.gather(story(), story())
    await start
    assert first == second
    assert any("You are next" in line for line in first)
    assert "your place is kept" in first[-1]


async def test_rename_is_refused_while_there_is_a_session(user: User) -> None:
    await user.start("old", profile="cpu")
    await user.stop("old")
    answer = await user.hub.api(
        "PATCH", f"/users/{user.name}/servers/old", json={"name": "new", "display_name": "new"}
    )
    assert answer.status_code == 400 and "Discard it" in answer.json()["message"]
    assert (await user.start("old")).status_code == 201


async def test_removing_a_server_ends_its_session_for_good(user: User) -> None:
    await user.start("gone", profile="gpu-2")
    token, first = await user.token("gone"), await user.workload_id("gone")
    await user.stop("gone", remove=True)

    async def is_removed() -> bool:
        return not await user.model("gone")

    await until(is_removed)
    assert not await user.token_works(token)
    await user.start("gone", profile="gpu-2")
    assert await user.workload_id("gone") != first


async def test_a_hub_that_dies_finds_running_sessions_again(hub: RunningHub, user: User) -> None:
    """Last in this module: the scheduler of these tests lives in the Hub and dies with it."""
    await user.start(profile="cpu")
    (await user.folder() / "outlives").touch()
    pid, token = await user.pid(), await user.token()
    hub.kill()
    await hub.start()
    await user.until_ready()
    assert (await user.pid(), await user.token()) == (pid, token)
    assert await user.token_works(token)
    (await user.folder() / "suspend").write_text("end of test")
    await user.until_stopped(seconds=5)
    assert await user.token_works(token), "also after a restart this was a suspend"
