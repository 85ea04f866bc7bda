"""Who may see and change teams, over real HTTP, with a Hub that vouches for users."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from scheduler_bridge.errors import NotAllowed, Refused
from scheduler_bridge.model.teams import Proposal
from tests.builders.scheduler import TOKENS, job, served
from tests.builders.teams import team
from tests.fakes.scheduler_hubs import fake_hub, hub_user
from tests.scheduler_bridge.test_auth import World


@pytest.fixture
async def world() -> AsyncIterator[World]:
    users = {
        "alice-token": hub_user("alice", groups=["sehen"]),
        "bob-token": hub_user("bob"),
        "root-token": hub_user("root", admin=True),
    }
    async with fake_hub(users=users) as hub, served(hub_api_url=hub.url) as (_, url):
        made = World(hub, url)
        proposal = Proposal(
            "set up",
            created=(team("research"), team("vision", "research", groups=("sehen",)), team("x")),
        )
        await made("admin").change_teams(proposal, actor="ada")
        yield made
        for client in made.clients:
            await client.aclose()


async def test_administrators_change_teams_in_their_own_name(world: World) -> None:
    root = world("root-token")
    (first,) = await root.team_changes()
    assert first.author == "ada"
    back = await root.undo_teams(first.id, reason="no", actor="somebody else")
    again = await world("admin").undo_teams(back.id, reason="yes", actor="")
    assert (back.author, again.author) == ("root", "admin")


@pytest.mark.parametrize("token", ["alice-token", "hub", "reclaimer", "scheduler"])
async def test_nobody_else_changes_them(world: World, token: str) -> None:
    client = world(token)
    head = (await world("admin").team_changes())[-1].id
    with pytest.raises(NotAllowed):
        await client.change_teams(Proposal("mine", head, created=(team("y"),)), actor="root")
    with pytest.raises(NotAllowed):
        await client.undo_teams(head, reason="mine", actor="root")
    assert len(await world("admin").team_changes()) == 1


async def test_users_see_their_own_teams_and_those_above(world: World) -> None:
    alice, bob = world("alice-token"), world("bob-token")
    assert [it.team.name for it in (await alice.teams()).teams] == ["research", "vision"]
    assert [it.team.name for it in (await bob.teams()).teams] == ["default"]
    assert await alice.usable_teams("bob", {"x"}) == ("vision",), "only their own"
    assert await world("hub").usable_teams("bob", {"x"}) == ("x",)
    for client in (alice, world("scheduler")):
        with pytest.raises(NotAllowed):
            await client.team_changes()


async def test_users_submit_in_the_teams_of_their_groups(world: World) -> None:
    alice = world("alice-token")
    made = await alice.submit(job("alice", gpus=0, team="vision"), key="a")
    assert made.spec.team == "vision"
    await alice.submit(job("alice", gpus=0), key="b")
    with pytest.raises(NotAllowed, match="Use one of: default, vision"):
        await alice.submit(job("alice", gpus=0, team="sehen"), key="c")
    with pytest.raises(Refused, match="no team 'sehen'"):
        await world("admin").submit(job("alice", gpus=0, team="sehen"), key="d")


@pytest.mark.parametrize(
    ("proposal", "named"),
    [
        ({"reason": "r", "created": [{"name": "y", "limit": "many"}]}, "created.0.limit"),
        ({"reason": "r", "created": [{"name": "y", "priority_limits": {"9": 1}}]}, "priority_limits"),
        ({"created": []}, "reason"),
        ({"reason": "r", "created": [{"limit": 1}]}, "created.0.name"),
    ],
)  # fmt: skip
async def test_a_body_that_is_none_is_refused_with_the_field(
    world: World, proposal: object, named: str
) -> None:
    headers = {"Authorization": f"Bearer {TOKENS['admin']}"}
    async with httpx.AsyncClient(base_url=world.url, headers=headers) as client:
        answer = await client.post("/api/v1/teams/changes", json={"proposal": proposal})
    assert answer.status_code == 422
    assert named in answer.json()["message"]


async def test_the_interface_describes_teams(world: World) -> None:
    async with httpx.AsyncClient(base_url=world.url) as client:
        document = (await client.get("/openapi.json")).json()
    assert {"/api/v1/teams", "/api/v1/teams/changes"} <= set(document["paths"])
