"""Who may do what at the Hub: the least that each service needs, and what users gain (pure)."""

from __future__ import annotations

from typing import Any, Final

from hub_config.settings import SERVICE_NAME

RECLAIMER_NAME: Final = "reclaimer"

SERVICE_SCOPES: Final[dict[str, tuple[str, ...]]] = {
    # reads group membership for teams, and starts a server whose turn in the queue has come
    SERVICE_NAME: (
        "list:users",
        "read:users:name",
        "read:users:groups",
        "read:servers",
        "start:servers",
    ),
    # shows admins whose sessions are idle; suspends by the scheduler, never by the Hub
    RECLAIMER_NAME: ("list:users", "read:users:activity", "read:users:groups", "read:servers"),
}

SERVER_TOKEN_SCOPES: Final = (
    "users:activity!user",
    "access:servers!server",
    f"access:services!service={SERVICE_NAME}",
)
"""What a notebook may do as its user: report activity, serve its user, speak to the scheduler."""

USER_SCOPES: Final = frozenset({f"access:services!service={SERVICE_NAME}"})
"""Added to every user's role."""


def service_roles() -> list[dict[str, Any]]:
    """For `c.JupyterHub.load_roles`. Replaces no default role."""
    return [
        {"name": f"{name}-service", "scopes": list(scopes), "services": [name]}
        for name, scopes in SERVICE_SCOPES.items()
    ]


def services(urls: dict[str, str], tokens: dict[str, str]) -> list[dict[str, Any]]:
    """For `c.JupyterHub.services`: external ones, started by somebody else. `urls` and `tokens` by
    service name; one without URL is not routed by the proxy."""
    return [
        {"name": name, "api_token": tokens[name], "display": False}
        | ({"url": urls[name], "oauth_no_confirm": True} if name in urls else {})
        for name in SERVICE_SCOPES
    ]
