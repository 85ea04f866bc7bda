"""Accounts, as a real Hub tells of them."""

from __future__ import annotations

from pathlib import Path

from hub_config.hub_users import hub_users
from tests.builders.hub import running_hub


async def test_a_real_hub_tells_all_accounts_in_pages(tmp_path: Path) -> None:
    async with running_hub(tmp_path, "c.JupyterHub.api_page_max_limit = 2\n") as hub:
        names = [f"person{number}" for number in range(5)]
        for name in names:
            await hub.api("POST", f"/users/{name}")
        assert hub_users(f"{hub.url}/hub/api", hub.token) == frozenset(names)
        await hub.api("DELETE", "/users/person3")
        assert hub_users(f"{hub.url}/hub/api", hub.token) == frozenset(names) - {"person3"}
        assert hub_users(f"{hub.url}/hub/api", "another") is None
