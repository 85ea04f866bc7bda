"""Least privilege: the services' scopes are enough and no more, and all of them exist."""

from __future__ import annotations

import re

from jupyterhub.scopes import scope_definitions

from hub_config.roles import (
    SERVER_TOKEN_SCOPES,
    SERVICE_SCOPES,
    USER_SCOPES,
    service_roles,
    services,
)


def test_every_scope_exists() -> None:
    for scope in [s for scopes in SERVICE_SCOPES.values() for s in scopes]:
        assert scope in scope_definitions, scope
    for scope in (*SERVER_TOKEN_SCOPES, *USER_SCOPES):
        assert scope.split("!")[0] in scope_definitions, scope


def test_no_service_can_read_state_stop_servers_or_become_a_user() -> None:
    forbidden = re.compile(r"admin|delete|tokens|access:servers|server_state|inherit|self")
    for scopes in SERVICE_SCOPES.values():
        assert not [scope for scope in scopes if forbidden.search(scope)]


def test_no_default_role_is_replaced() -> None:
    names = {role["name"] for role in service_roles()}
    assert not names & {"user", "admin", "server", "token"}
    assert all(role["services"] for role in service_roles())


def test_only_what_has_a_url_is_routed() -> None:
    made = services({"hubernate": "http://x"}, {"hubernate": "a", "reclaimer": "b"})
    assert {s["name"]: "url" in s for s in made} == {"hubernate": True, "reclaimer": False}
