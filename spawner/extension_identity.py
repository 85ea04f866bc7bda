"""Who this server is to the Hub, after a resume and in a fork.

A frozen server comes back with the URL, the token and the OAuth client that it had. What it is to
be now, its supervisor has left in `identity.json` before the restore. It is taken over in front of
the first request, whoever makes it: nothing is answered, and nothing is told to the Hub, as somebody
else. What cannot be taken over leaves the server answering 503.

The user could write the file too; it gives nothing that they do not have, because a token does.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, Final

from jupyterhub.services.auth import HubAuth
from tornado import httputil, web
from tornado.routing import PathMatches, Rule
from traitlets import HasTraits

_log = logging.getLogger(__name__)

IDENTITY_FILE: Final = "identity.json"
LARGEST_FILE: Final = 1 << 20
PREFIX: Final = "JUPYTERHUB_SERVICE_PREFIX"
HUB_EXTENSION: Final = "jupyterhub-singleuser"

_VARIABLES: Final = re.compile(r"JUPYTERHUB_\w+|JPY_API_TOKEN|HUBERNATE_\w+")
_RESETS: Final = (
    "api_token",
    "hub_host",
    "hub_prefix",
    "oauth_client_id",
    "oauth_redirect_uri",
    "oauth_authorization_url",
    "oauth_token_url",
    "login_url",
    "access_scopes",
    "cache",
    "_oauth_states",
)
"""Of `HubAuth`: what it once read from its environment, and whom it remembers."""


class NotTakenOver(Exception):
    """The identity cannot be used."""


def read_identity(path: Path) -> dict[str, str]:
    """The variables in the file, of those that say who a server is. Raises `NotTakenOver`."""
    try:
        with open(path, "rb") as handle:
            found = json.loads(handle.read(LARGEST_FILE))["environment"]
        return {str(k): str(v) for k, v in found.items() if _VARIABLES.fullmatch(str(k))}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise NotTakenOver(f"{path} says nothing of use: {error!r}") from error


class IdentityGuard:
    """Stands in front of the server's requests, and of what it tells the Hub."""

    def __init__(self, serverapp: Any, file: Path) -> None:
        self._server = serverapp
        self._file = file
        self._taken = self._look()

    def _look(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self._file)
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns

    def check(self) -> bool:
        """Take over what was left since the last check (one stat if nothing was). False: that was
        not possible; it is tried again at the next check."""
        stamp = self._look()
        if stamp is None or stamp == self._taken:
            return True
        try:
            take_over(self._server, read_identity(self._file))
        except Exception:
            _log.exception("this server could not take over its identity; it answers nobody")
            return False
        self._taken = stamp
        return True

    def stand(self) -> None:
        """Begin. From now on no request finds its handler, and no activity is told, unchecked."""
        application = self._server.web_app
        find = application.find_handler

        def checked_find(request: httputil.HTTPServerRequest, **options: Any) -> Any:
            if self.check():
                return find(request, **options)
            refusal = {"status_code": 503}
            return application.get_handler_delegate(request, web.ErrorHandler, refusal)

        application.find_handler = checked_find
        hub = hub_extension(self._server)
        if hub is not None:
            _check_before(hub, "notify_activity", self.check)


def _check_before(owner: Any, name: str, check: Callable[[], bool]) -> None:
    original = getattr(owner, name)

    @wraps(original)
    async def checked() -> None:
        if check():
            await original()

    # not a trait: the Hub's extension calls it by its name each time
    setattr(owner, name, checked)


def hub_extension(serverapp: Any) -> Any:
    """The Hub's own extension in this server, None where there is none."""
    points = serverapp.extension_manager.extension_points
    return next(
        (p.app for p in points.values() if getattr(p.app, "name", "") == HUB_EXTENSION), None
    )


def take_over(serverapp: Any, environment: Mapping[str, str]) -> None:
    """Be who the variables say: towards the Hub first, then in routes and settings. May be repeated."""
    old = str(serverapp.web_app.settings["base_url"])
    new = environment.get(PREFIX) or old
    os.environ.update(environment)
    for auth in _hub_auths(serverapp, everywhere=new != old):
        renew(auth, environment)
    hub = hub_extension(serverapp)
    if hub is not None:
        hub.server_name = environment.get("JUPYTERHUB_SERVER_NAME", "")
        hub.hub_activity_url = environment.get("JUPYTERHUB_ACTIVITY_URL", "")
    if new != old:
        serverapp.cookie_secret = secrets.token_bytes(32)
        serverapp.web_app.settings["cookie_secret"] = serverapp.cookie_secret
        move(serverapp, old, new)
        serverapp.write_server_info_file()
    _log.info("this server is %s now, with a token of its own", new)


def _hub_auths(serverapp: Any, *, everywhere: bool) -> list[HubAuth]:
    """Everything that asks the Hub who somebody is. Looking for it everywhere touches all of the
    server's memory, which may still be arriving: that is left to forks."""
    found = [
        getattr(serverapp.identity_provider, "hub_auth", None),
        getattr(hub_extension(serverapp), "hub_auth", None),
    ]
    if everywhere:
        found += [each for each in gc.get_objects() if isinstance(each, HubAuth)]
    return list({id(each): each for each in found if isinstance(each, HubAuth)}.values())


def renew(auth: HubAuth, environment: Mapping[str, str]) -> None:
    """Forget whom it knew and be somebody else towards the Hub. `os.environ` is new already."""
    fresh = type(auth)(parent=auth.parent)
    # two defaults of `HubAuth` are those of the moment in which its module was loaded
    for each in (fresh, auth):
        each.base_url = environment.get(PREFIX) or each.base_url
        each.api_url = environment.get("JUPYTERHUB_API_URL") or each.api_url
    for name in _RESETS:
        if auth.has_trait(name):
            setattr(auth, name, getattr(fresh, name))


def move(serverapp: Any, old: str, new: str) -> None:
    """Answer under another base URL: routes, settings, and what they were built from."""
    application = serverapp.web_app
    rename = _renaming(old, new)
    owners: list[Any] = [serverapp, *_extensions(serverapp)]
    for rule in _rules(application.default_router):
        if isinstance(rule.matcher, PathMatches):
            rule.matcher = _moved_matcher(rule.matcher, old, new)
        owners += [value for value in rule.target_kwargs.values() if _is_to_move(value)]
        rule.target_kwargs = rename(rule.target_kwargs)
    for name, value in list(application.settings.items()):
        application.settings[name] = rename(value)
    manager = application.settings.get("terminal_manager")
    if manager is not None:
        manager.extra_env = rename(getattr(manager, "extra_env", None))
    for owner in {id(each): each for each in owners}.values():
        _move_traits(owner, rename)


def _is_to_move(value: object) -> bool:
    """What asks the Hub has its URLs from the environment (see `renew`)."""
    return isinstance(value, HasTraits) and not isinstance(value, HubAuth)


def _extensions(serverapp: Any) -> list[Any]:
    points = serverapp.extension_manager.extension_points
    return [point.app for point in points.values() if isinstance(point.app, HasTraits)]


def _rules(router: Any) -> Iterator[Rule]:
    """All rules, those of routers within routers too."""
    for rule in router.rules:
        yield rule
        if hasattr(rule.target, "rules"):
            yield from _rules(rule.target)


def _moved_matcher(matcher: PathMatches, old: str, new: str) -> PathMatches:
    pattern = matcher.regex.pattern
    for written in (old, re.escape(old)):
        if pattern.startswith(written):
            return PathMatches(re.escape(new) + pattern[len(written) :])
    return matcher


def _move_traits(owner: HasTraits, rename: Callable[[Any], Any]) -> None:
    for name in owner.trait_names():
        # only what has a value: asking for the others would make them
        if name not in owner._trait_values or name == "config":
            continue
        value = owner._trait_values[name]
        if isinstance(value, (str, dict, list, tuple)) and (moved := rename(value)) != value:
            setattr(owner, name, moved)


def _renaming(old: str, new: str) -> Callable[[Any], Any]:
    """Texts that are URLs below `old` become the same below `new`, in containers too."""
    below = re.compile(rf"(https?://[^/]+)?{re.escape(old)}")

    def rename(value: Any) -> Any:
        if isinstance(value, str):
            found = below.match(value)
            return f"{found[1] or ''}{new}{value[found.end() :]}" if found else value
        if type(value) is dict:
            return {name: rename(each) for name, each in value.items()}
        if type(value) in (list, tuple):
            return type(value)(rename(each) for each in value)
        return value

    return rename
