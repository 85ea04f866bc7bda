"""Finds out who asks: a service's token, or a Hub user's token that the Hub vouches for."""

from __future__ import annotations

import hashlib
import hmac
import json
import stat
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import httpx

from scheduler_bridge.api.callers import Caller, service, user
from scheduler_bridge.errors import NotAllowed, Unavailable

KNOWN_SECONDS: Final = 60.0
UNKNOWN_SECONDS: Final = 5.0
_REMEMBERED_AT_MOST: Final = 4096
_SERVICE_SCOPES: Final = ("access:services", "access:services!service=hubernate")
_ADMIN_SCOPE: Final = "admin:users"
_LONGEST_TOKEN: Final = 4096


class Unauthenticated(NotAllowed):
    """No token, or one that nobody knows."""


class BadTokenFile(Exception):
    """The file of service tokens cannot be used; the message says why and what to do."""


def read_tokens(path: Path) -> dict[str, str]:
    """Service tokens by name, from a JSON object in a file that only its owner may read."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            raise BadTokenFile(f"{path} may be read by others. Do: chmod 600 {path}")
        tokens = json.loads(path.read_bytes())
    except OSError as error:
        raise BadTokenFile(f"The service tokens cannot be read: {error}") from error
    except ValueError as error:
        raise BadTokenFile(f"{path} is not JSON: it must be an object of name: token.") from error
    if not isinstance(tokens, dict) or not all(
        isinstance(token, str) and len(token) >= 16 for token in tokens.values()
    ):
        raise BadTokenFile(f"{path}: each token must be a text of 16 characters or more.")
    if len(set(tokens.values())) < len(tokens):
        raise BadTokenFile(f"{path}: two services have the same token.")
    return {str(name): token for name, token in tokens.items()}


class HubUsers:
    """Asks the Hub whose token it is. Remembers answers for a minute, refusals for seconds."""

    def __init__(self, api_url: str, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._url = api_url.rstrip("/")
        self._monotonic = monotonic
        self._known: OrderedDict[str, tuple[float, Caller | None]] = OrderedDict()
        self._client = httpx.AsyncClient(timeout=10.0, trust_env=False)

    async def caller(self, token: str) -> Caller:
        """The token's owner. Raises `NotAllowed`, or `Unavailable` when the Hub does not answer."""
        if not self._url:
            raise Unauthenticated("The token is not known.", remedy="Use a service token.")
        key = hashlib.sha256(token.encode()).hexdigest()
        until, caller = self._known.get(key, (0.0, None))
        if self._monotonic() >= until:
            caller = await self._ask(token)
            keep = KNOWN_SECONDS if caller else UNKNOWN_SECONDS
            self._known[key] = (self._monotonic() + keep, caller)
            self._known.move_to_end(key)
            while len(self._known) > _REMEMBERED_AT_MOST:
                self._known.popitem(last=False)
        if caller is None:
            raise Unauthenticated(
                "The token is not known to the Hub, or may not be used with this service.",
                remedy="Make a new token on the Hub's page for tokens.",
            )
        return caller

    async def _ask(self, token: str) -> Caller | None:
        try:
            answer = await self._client.get(
                f"{self._url}/user", headers={"Authorization": f"token {token}"}
            )
        except httpx.HTTPError as error:
            raise Unavailable(
                "The Hub does not answer, so nobody can be identified.", remedy="Try again soon."
            ) from error
        if answer.status_code in (401, 403):
            return None
        if answer.status_code != 200:
            raise Unavailable(
                f"The Hub answered {answer.status_code} when asked whose token it is.",
                remedy="Try again soon.",
            )
        return caller_of(answer.json())

    async def aclose(self) -> None:
        """Release connections."""
        await self._client.aclose()


def caller_of(model: Mapping[str, object]) -> Caller | None:
    """The caller in the Hub's answer; None for what is no user or lacks access to this service.

    A notebook's token never acts as an administrator, whoever owns it: it lacks the scope.
    """
    listed = model.get("scopes")
    scopes = {str(scope) for scope in listed} if isinstance(listed, list) else set()
    name = model.get("name")
    if model.get("kind") != "user" or not isinstance(name, str) or not name:
        return None
    if scopes.isdisjoint(_SERVICE_SCOPES):
        return None
    groups = model.get("groups")
    return user(
        name,
        groups=frozenset(str(g) for g in groups) if isinstance(groups, list) else frozenset(),
        admin=model.get("admin") is True and _ADMIN_SCOPE in scopes,
    )


class Authenticator:
    """Turns an Authorization header into a caller."""

    def __init__(self, tokens: Mapping[str, str], hub: HubUsers) -> None:
        self._services = {_hash(token): service(name) for name, token in tokens.items()}
        self._hub = hub

    async def caller(self, header: str | None) -> Caller:
        """Raises `NotAllowed`, `Unavailable`."""
        token = bearer(header)
        offered = _hash(token)
        found = None
        for known, caller in self._services.items():
            if hmac.compare_digest(known, offered):
                found = caller
        return found if found is not None else await self._hub.caller(token)


def bearer(header: str | None) -> str:
    """The token in `Bearer TOKEN` or `token TOKEN`. Raises `Unauthenticated`."""
    scheme, _, token = (header or "").partition(" ")
    token = token.strip()
    if scheme.lower() not in ("bearer", "token") or not token or len(token) > _LONGEST_TOKEN:
        raise Unauthenticated(
            "This needs a token in the header Authorization: Bearer …",
            remedy="Use a token of the Hub, or a service's.",
        )
    return token


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
