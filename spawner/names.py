"""Names under which the Hub's servers are known to the scheduler (pure)."""

from __future__ import annotations

import re
from urllib.parse import quote

_PLAIN = "@.-_~+"
_LONGEST = 60


def session_key(hub: str, user: str, server: str) -> str:
    """The scheduler's idempotency key of one Hub server.

    Injective: distinct (hub, user, server) never share a key, whatever characters they hold. It
    depends on nothing else, so that it is found again after the Hub lost its memory.
    """
    return "session:" + "/".join(quote(part, safe=_PLAIN) for part in (hub, user, server))


def session_name(user: str, server: str) -> str:
    """A workload's name: `ada` for the default server, `ada.experiment` for a named one.

    For people; made of letters, digits and . _ @ - as the scheduler wants, so two may be alike.
    """
    return re.sub(r"[^A-Za-z0-9._@-]", "-", f"{user}.{server}" if server else user)[:_LONGEST]


def server_title(server: str) -> str:
    """How a page speaks to the owner about one of their servers."""
    return f"Server “{server}”" if server else "Your server"
