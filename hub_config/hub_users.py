"""Who has an account at the Hub."""

from __future__ import annotations

import logging
from typing import Any, Final

import httpx

log = logging.getLogger(__name__)

PAGE: Final = 200
_MOST_PAGES: Final = 5000


def hub_users(api_url: str, token: str) -> frozenset[str] | None:
    """All names, or None when the Hub does not tell: then nobody counts as deleted."""
    names: set[str] = set()
    offset = 0
    headers = {
        "Authorization": f"token {token}",
        "Accept": "application/jupyterhub-pagination+json",
    }
    try:
        with httpx.Client(timeout=10.0, trust_env=False, headers=headers) as client:
            for _ in range(_MOST_PAGES):
                answer = client.get(f"{api_url}/users", params={"limit": PAGE, "offset": offset})
                answer.raise_for_status()
                document: dict[str, Any] = answer.json()
                names |= {str(user["name"]) for user in document["items"]}
                following = document["_pagination"]["next"]
                if following is None:
                    return frozenset(names)
                offset = int(following["offset"])  # the Hub may give fewer than were asked for
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        log.warning("the Hub does not tell who has an account: %s", error)
    return None
