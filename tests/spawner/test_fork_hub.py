"""Forks in a real Hub behind its real proxy: who may, what the Hub keeps, what is left of a failure."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.builders.hub import Browser, RunningHub, until

pytestmark = pytest.mark.asyncio(loop_scope="module")
_numbers = itertools.count()


async def rows(browser: Browser) -> dict[str, dict[str, Any]]:
    answer = await browser.get(f"/hub/hubernate/sessions?_xsrf={browser.xsrf}")
    return {row["server"]: row for row in answer.json()["sessions"]}


async def act(browser: Browser, action: str, server: str = "") -> None:
    body = {"server": server, "action": action}
    answer = await browser.post("/hub/hubernate/sessions/action", json=body)
    assert answer.status_code == 200, answer.text


async def fork(browser: Browser, **body: str) -> httpx.Response:
    return await browser.post("/hub/hubernate/sessions/fork", json=body)


async def until_phase(browser: Browser, phase: str, server: str = "") -> None:
    async def there() -> bool:
        return (await rows(browser)).get(server, {}).get("phase") == phase

    await until(there, what=f"{server!r} {phase}")


async def suspended(browser: Browser) -> None:
    answer = await browser.post("/hub/spawn", data={"profile": "cpu"})
    assert answer.status_code == 200, answer.text
    await until_phase(browser, "running")
    await act(browser, "suspend")
    await until_phase(browser, "suspended")
    await until(lambda: browser.hub.is_stopped(browser.user))


@pytest_asyncio.fixture(loop_scope="module")
async def ada(hub: RunningHub) -> AsyncIterator[Browser]:
    async with hub.browser(f"forker{next(_numbers)}") as browser:
        yield browser
        for server, row in (await rows(browser)).items():
            for action in {"cancel", "stop", "discard"}.intersection(row["actions"]):
                await act(browser, action, server)

        async def is_empty() -> bool:
            return not await rows(browser)

        await until(is_empty)


async def order(browser: Browser, sessions: Path, server: str = "") -> dict[str, Any]:
    """What the session's supervisor was told last."""
    state = (await browser.hub.server(browser.user, server))["state"]
    told: dict[str, Any] = json.loads((sessions / state["workload_id"] / "order.json").read_text())
    return told


async def works(hub: RunningHub, token: str) -> bool:
    return (await hub.api("GET", "/user", token=token)).status_code == 200


async def test_a_fork_is_a_server_of_its_own_with_a_token_of_its_own(
    ada: Browser, sessions: Path
) -> None:
    await suspended(ada)
    first = (await order(ada, sessions))["environment"]["JUPYTERHUB_API_TOKEN"]
    answer = await fork(ada, server="", name="second")
    assert answer.json()["url"] == f"/hub/spawn-pending/{ada.user}/second"
    await until(lambda: ada.hub.is_ready(ada.user, "second"))
    told = await order(ada, sessions, "second")
    assert told["mode"] == "resume"
    environment = told["environment"]
    assert environment["JUPYTERHUB_SERVICE_PREFIX"] == f"/user/{ada.user}/second/"
    assert environment["JUPYTERHUB_CLIENT_ID"] == f"jupyterhub-user-{ada.user}-second"
    token = environment["JUPYTERHUB_API_TOKEN"]
    assert await works(ada.hub, token)
    assert not await works(ada.hub, first), "the fork's memory holds it too"

    await act(ada, "resume")
    await until(lambda: ada.hub.is_ready(ada.user))
    own = (await order(ada, sessions))["environment"]["JUPYTERHUB_API_TOKEN"]
    assert own not in (token, first) and await works(ada.hub, own)
    assert (await rows(ada))["second"]["phase"] == "running"


async def test_a_name_is_chosen_where_none_is_given(ada: Browser) -> None:
    await suspended(ada)
    assert (await fork(ada)).json()["server"] == "fork-1"
    assert (await fork(ada, server="")).json()["server"] == "fork-2"
    assert (await fork(ada, name="fork-1")).status_code == 409
    assert (await fork(ada, name="No Name!")).status_code == 400
    assert (await fork(ada, server="unknown")).status_code == 404


async def test_a_fork_of_a_fork(ada: Browser) -> None:
    await suspended(ada)
    await fork(ada, name="run")
    await until_phase(ada, "running", "run")
    await act(ada, "suspend", "run")
    await until_phase(ada, "suspended", "run")
    await until(lambda: ada.hub.is_stopped(ada.user, "run"))
    assert (await fork(ada, server="run")).json()["server"] == "run-fork-1"
    await until_phase(ada, "running", "run-fork-1")


async def test_what_runs_is_not_forked(ada: Browser) -> None:
    assert (await fork(ada)).status_code == 409
    await ada.post("/hub/spawn", data={"profile": "cpu"})
    await until_phase(ada, "running")
    answer = await fork(ada, name="early")
    assert answer.status_code == 409 and "Only a suspended session" in answer.json()["message"]
    assert "early" not in await rows(ada)
    assert not await ada.hub.server(ada.user, "early")


async def test_nobody_forks_for_somebody_else(hub: RunningHub, ada: Browser) -> None:
    await suspended(ada)
    async with hub.browser("stranger") as stranger:
        for user in (ada.user, "nobody-of-this-name"):
            answer = await fork(stranger, user=user, name="stolen")
            assert answer.status_code == 403
    assert list(await rows(ada)) == [""]
    made = await hub.api(
        "POST", f"/users/{ada.user}/tokens", json={"scopes": ["read:servers!user"]}
    )
    async with httpx.AsyncClient() as client:
        answer = await client.post(
            f"{hub.url}/hub/hubernate/sessions/fork",
            json={"name": "weak"},
            headers={"Authorization": f"token {made.json()['token']}"},
        )
    assert answer.status_code == 403 and "start:servers" in answer.json()["message"]


async def test_an_admins_service_forks_for_its_owner(hub: RunningHub, ada: Browser) -> None:
    await suspended(ada)
    async with httpx.AsyncClient() as client:
        answer = await client.post(
            f"{hub.url}/hub/hubernate/sessions/fork",
            json={"user": ada.user, "name": "by-service"},
            headers={"Authorization": f"token {hub.token}"},
        )
    assert answer.status_code == 200, answer.text
    await until(lambda: hub.is_ready(ada.user, "by-service"))
    assert set(await rows(ada)) == {"", "by-service"}


async def test_two_forks_at_once_of_one_name_are_one(ada: Browser) -> None:
    await suspended(ada)
    answers = await asyncio.gather(*(fork(ada, name="twice") for _ in range(2)))
    assert sorted(a.status_code for a in answers) == [200, 409]
    await until_phase(ada, "running", "twice")


@pytest.mark.parametrize("body", [[], {"name": 3}, {"server": None}])
async def test_what_makes_no_sense_is_refused(ada: Browser, body: Any) -> None:
    answer = await ada.post("/hub/hubernate/sessions/fork", json=body)
    assert answer.status_code == 400
