"""Sessions belong to teams, which are the groups of a real Hub."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.builders.hub import RunningHub, query_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

_users = iter(range(1000))


class Member:
    """A user of the Hub in some groups."""

    def __init__(self, hub: RunningHub, name: str) -> None:
        self.hub, self.name = hub, name

    async def join(self, *groups: str) -> Member:
        for group in groups:
            await self.hub.api("POST", f"/groups/{group}")
            answer = await self.hub.api(
                "POST", f"/groups/{group}/users", json={"users": [self.name]}
            )
            assert answer.status_code == 200, answer.text
        return self

    async def leave(self, group: str) -> None:
        answer = await self.hub.api("DELETE", f"/groups/{group}/users", json={"users": [self.name]})
        assert answer.status_code == 200, answer.text

    async def start(self, server: str = "", **options: Any) -> httpx.Response:
        path = f"/users/{self.name}/servers/{server}" if server else f"/users/{self.name}/server"
        return await self.hub.api("POST", path, json=options or None)

    async def stop(self, server: str = "") -> httpx.Response:
        path = f"/users/{self.name}/servers/{server}" if server else f"/users/{self.name}/server"
        return await self.hub.api("DELETE", path)


@pytest_asyncio.fixture(loop_scope="module")
async def member(hub: RunningHub) -> AsyncIterator[Member]:
    made = Member(hub, f"member{next(_users)}")
    await hub.api("POST", f"/users/{made.name}")
    yield made
    await hub.remove(made.name)


@pytest_asyncio.fixture(loop_scope="module")
async def colleague(hub: RunningHub) -> AsyncIterator[Member]:
    made = Member(hub, f"colleague{next(_users)}")
    await hub.api("POST", f"/users/{made.name}")
    yield made
    await hub.remove(made.name)


async def test_a_limit_of_the_team_meets_sessions_of_its_members(
    member: Member, colleague: Member
) -> None:
    """Team narrow may hold one GPU, and the machine has two."""
    await member.join("narrow")
    await colleague.join("narrow")
    too_many = await member.start(profile="gpu-2")
    assert too_many.status_code == 400
    assert "team narrow may hold 1 GPU at once" in too_many.json()["message"]
    assert (await member.start(profile="gpu-1")).status_code == 201
    waits = await colleague.start(profile="gpu-1")
    assert waits.status_code == 503 and "your place is kept" in waits.json()["message"]
    await member.stop()
    assert (await colleague.start(profile="gpu-1")).status_code == 201


@pytest.mark.parametrize("team", ["default", "nobody"])
async def test_a_team_of_others_by_rest_is_refused_and_ones_own_are_named(
    member: Member, team: str
) -> None:
    await member.join("vision", "audio")
    answer = await member.start(profile="cpu", team=team)
    assert answer.status_code == 400
    assert "Your teams are: audio, vision." in answer.json()["message"]


async def test_who_is_in_several_teams_has_to_say_which(member: Member) -> None:
    await member.join("vision", "audio")
    answer = await member.start(profile="cpu")
    assert answer.status_code == 400 and "Say which one" in answer.json()["message"]
    assert (await member.start(profile="cpu", team="vision")).status_code == 201
    other = await member.start(profile="cpu", team="audio")
    assert other.status_code == 400, "it runs already"


async def test_a_form_of_several_teams_has_a_choice_that_is_taken(member: Member) -> None:
    await member.join("narrow", "vision")
    async with member.hub.browser(member.name) as browser:
        page = await browser.get(f"/hub/spawn/{member.name}")
        assert '<option value="narrow"' in page.text and '<option value="vision"' in page.text
        form = {"profile": "gpu-2", "team": "narrow", "_xsrf": browser.xsrf}
        refused = await browser.post(f"/hub/spawn/{member.name}", data=form)
        assert "team narrow may hold 1 GPU at once" in refused.text, query_of(refused)


async def test_a_suspended_session_can_come_back_in_another_team_but_not_beyond_its_limit(
    member: Member,
) -> None:
    await member.join("narrow", "vision")
    await member.start(profile="gpu-1", team="vision")
    await member.stop()
    assert (await member.start(profile="gpu-1", team="narrow")).status_code == 201
    answer = await member.start("second", profile="gpu-1", team="narrow")
    assert answer.status_code == 503, "narrow holds its one GPU"
    assert (await member.start("second", profile="gpu-1", team="vision")).status_code == 201


async def test_a_team_is_not_exchanged_for_one_that_is_too_small(member: Member) -> None:
    await member.join("narrow", "vision")
    await member.start(profile="gpu-2", team="vision")
    await member.stop()
    answer = await member.start(profile="gpu-2", team="narrow")
    assert answer.status_code == 400 and "team narrow may hold 1 GPU" in answer.json()["message"]
    assert (await member.start()).status_code == 201, "a plain start means the old session again"


async def test_who_left_a_team_keeps_the_session_with_the_share_of_another(
    member: Member,
) -> None:
    await member.join("narrow")
    await member.start(profile="gpu-1")
    await member.stop()
    await member.leave("narrow")
    assert (await member.start()).status_code == 201, "memory is never lost for a group"
    await member.join("narrow")
    answer = await member.start("second", profile="gpu-1")
    assert answer.status_code == 201, "the first one no longer uses narrow's GPU"


async def test_who_left_a_team_does_not_wait_for_its_share(
    member: Member, colleague: Member
) -> None:
    await member.join("narrow")
    await colleague.join("narrow")
    await member.start(profile="gpu-1")
    assert (await colleague.start(profile="gpu-1")).status_code == 503
    await colleague.leave("narrow")
    assert (await colleague.start(profile="gpu-1")).status_code == 201
