"""The Hub's handler that makes several sessions out of a suspended one.

    POST /hub/hubernate/sessions/fork {"server": "", "name": "second", "user": "ada"}
    {"done": "fork", "server": "second", "workload_id": "s-…", "url": "/hub/spawn-pending/…"}

The fork is a named server of the same user; without `name` a free one is chosen. `user` is for tokens
of services and admins; whoever is logged in forks their own sessions. The fork begins to be opened at
once, and the Hub's usual pages tell how that goes.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from typing import Any, Final, cast

from jupyterhub.handlers.base import BaseHandler
from tornado import web

from scheduler_bridge.errors import Conflict, SchedulerError, Unavailable
from scheduler_bridge.model.workload import Workload
from spawner.base import GpuSessionMixin
from spawner.forking import fork
from spawner.hosting import HostError
from spawner.names import session_key
from spawner.pages import SessionActionHandler

SCOPE: Final = "start:servers"
OLDER: Final = "It was started before sessions could be forked."


@dataclass(frozen=True, slots=True)
class Asked:
    """What the body says."""

    user: str
    server: str
    name: str


class SessionForkHandler(SessionActionHandler):
    """POST: fork a suspended session and open the fork."""

    @web.authenticated
    async def post(self) -> None:
        asked = _read(self.get_json_body())
        user = self._owner(asked)
        name = asked.name or free_name(asked.server, set(user.orm_spawners))
        self._require(user, name)
        if asked.server not in user.orm_spawners and asked.server:
            raise web.HTTPError(404, f"There is no server named {asked.server!r}.")
        if name in user.orm_spawners:
            raise web.HTTPError(409, f"There is already a server named {name!r}.")
        await self._check_named_server_request(user, name, name)
        source = cast(GpuSessionMixin, user.spawners[asked.server])
        try:
            made = await self._fork(source, name)
        except Unavailable as problem:
            raise web.HTTPError(503, str(problem)) from problem
        except (SchedulerError, HostError) as problem:
            raise web.HTTPError(409, str(problem)) from problem
        fresh = cast(GpuSessionMixin, user.get_or_create_spawner(name, name))
        fresh.continue_as(made, options=source.orm_spawner.user_options)
        answer = await self._open(fresh, user=user)
        self.finish(json.dumps(answer | {"done": "fork", "server": name, "workload_id": made.id}))

    def _owner(self, asked: Asked) -> Any:
        """Whose session it is: the own one of whoever asks, or somebody's whom they name."""
        caller = self.current_user
        is_person = getattr(caller, "orm_user", None) is not None
        if is_person and asked.user in ("", caller.name):
            return caller
        user = self.find_user(asked.user) if asked.user else None
        # says no more to those who may not know
        if user is None or not self.has_scope(f"{SCOPE}!user={asked.user}"):
            raise web.HTTPError(403, f"You may not fork sessions of {asked.user or 'anybody'}.")
        return user

    def _require(self, user: Any, name: str) -> None:
        if not self.has_scope(f"{SCOPE}!server={user.name}/{name}"):
            raise web.HTTPError(403, f"This token lacks the scope {SCOPE} for the new server.")

    async def _fork(self, source: GpuSessionMixin, name: str) -> Workload:
        workload = await source.plugin.find(source.key)
        if workload is None:
            raise Conflict("There is no suspended session to fork.", remedy="Suspend it first.")
        if not source.takes_new_identity(workload):
            raise Conflict(OLDER, remedy="Stop it and start it fresh, then it can be.")
        key = session_key(source.hub_name, source.user.name, name)
        made = await fork(source.plugin, source.host, workload, key=key, server=name)
        # the copies hold it too, and whatever is resumed gets another one
        source.void_token()
        return made


FORK_HANDLERS: list[tuple[str, type[BaseHandler]]] = [
    (r"/hubernate/sessions/fork", SessionForkHandler)
]
"""For `c.JupyterHub.extra_handlers`."""


def free_name(server: str, taken: set[str]) -> str:
    """A name for a fork: `fork-1` of the default server, `run-fork-1` of the server `run`."""
    base = f"{server[:20].rstrip('-')}-fork" if server else "fork"
    return next(name for n in itertools.count(1) if (name := f"{base}-{n}") not in taken)


def _read(body: Any) -> Asked:
    """Raises 400 with what would be right."""
    if not isinstance(body, dict):
        raise web.HTTPError(400, 'Send a JSON object: {"server": "", "name": "second"}.')
    values = [body.get(field, "") for field in ("user", "server", "name")]
    if not all(isinstance(value, str) for value in values):
        raise web.HTTPError(400, "user, server and name must be texts.")
    return Asked(*values)
