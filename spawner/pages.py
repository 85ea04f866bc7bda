"""The Hub's own page handlers for sessions: what the home page shows, and what its buttons do.

Both answer JSON, act only for the logged-in user and check XSRF (the Hub's `APIHandler` does so on
every verb). A suspend or stop asked for here goes to the scheduler, not through the Hub's own stop:
the Hub hears of it after the commit, so that an undone suspend never involves it.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any, cast

from jupyterhub.apihandlers.base import APIHandler
from jupyterhub.handlers.base import BaseHandler
from jupyterhub.utils import url_escape_path, url_path_join
from tornado import web

from scheduler_bridge.errors import SchedulerError, Unavailable
from scheduler_bridge.model.phases import Desired, Kind, Phase
from scheduler_bridge.model.workload import FleetView, Forecast, Workload
from scheduler_bridge.plugin import SchedulerPlugin
from spawner.base import GpuSessionMixin
from spawner.hosting import HostError, NotReachable, Seen
from spawner.pages_view import Row, Server, is_left_alone, page, row

ACTIONS = ("suspend", "resume", "open", "cancel", "fresh", "discard", "stop")
SCOPES = {"resume": "start:servers", "open": "start:servers"}
FIRST_LOOK_SECONDS = 1.0
CANCEL_SECONDS = 2.0
SETTLE_SECONDS = 20.0
OPENING = frozenset({Phase.QUEUED, Phase.STARTING, Phase.RESUMING})


class SessionsHandler(APIHandler):  # type: ignore[misc]
    """GET: the user's sessions, running, waiting and suspended."""

    def _record_activity(self, obj: Any, timestamp: Any = None) -> bool:
        """A page that looks every two seconds is not a person at work."""
        return False

    def spawner_of(self, server: str) -> GpuSessionMixin:
        """The user's spawner of that name. Raises 404 where there is none."""
        if server and server not in self.current_user.orm_user.orm_spawners:
            raise web.HTTPError(404, f"You have no server named {server!r}.")
        return cast(GpuSessionMixin, self.current_user.spawners[server])

    def require(self, scope: str, server: str) -> None:
        """Refuse a token that does not carry the scope for this server (a log-in does)."""
        user = getattr(self.current_user, "orm_user", None)
        if user is None:
            raise web.HTTPError(403, "Log in as the owner of the sessions.")
        name = self.current_user.name
        if not self.has_scope(f"{scope}!server={name}/{server}"):
            raise web.HTTPError(403, f"This token lacks the scope {scope} for your server.")

    @web.authenticated
    async def get(self) -> None:
        self.require("read:servers", "")
        plugin = self.spawner_of("").plugin
        now = time.time()
        try:
            fleet, workloads = await asyncio.gather(
                plugin.fleet(), plugin.list(kind=Kind.SESSION, user=self.current_user.name)
            )
        except SchedulerError as problem:
            self.log.warning("the scheduler did not tell about sessions: %s", problem)
            self.finish(json.dumps(page([], None, now=now, is_scheduler_up=False)))
            return
        forecasts = await asyncio.gather(*(_forecast(plugin, w) for w in workloads))
        rows = [
            self._row(w, fleet, now, forecast)
            for w, forecast in zip(workloads, forecasts, strict=True)
        ]
        self.finish(json.dumps(page([r for r in rows if r], fleet, now=now)))

    def _row(
        self, workload: Workload, fleet: FleetView, now: float, forecast: Forecast | None = None
    ) -> Row | None:
        server = workload.spec.server
        user = self.current_user
        if server and server not in user.orm_user.orm_spawners:
            nowhere = Server(url="", is_ready=False)
            return row(workload, nowhere, Seen(), fleet, now=now, forecast=forecast)
        spawner = cast(Any, user.spawners[server])
        if workload.key != spawner.key:
            return None  # a session of another Hub
        if is_left_alone(workload, bool(spawner.active)):
            spawner.rejoin_soon()
        known = Server(user.server_url(server), bool(spawner.ready), spawner.pending or "")
        seen = spawner.host.observe(workload.id)
        return row(workload, known, seen, fleet, now=now, forecast=forecast)


class SessionActionHandler(SessionsHandler):
    """POST {"server": …, "action": …}: one button of the home page."""

    async def get(self) -> None:
        raise web.HTTPError(405, "POST an action here.")

    @web.authenticated
    async def post(self) -> None:
        body = self.get_json_body()
        action, server = _read(body)
        self.require(SCOPES.get(action, "delete:servers"), server)
        if action == "fresh":
            self.require("start:servers", server)
        spawner = self.spawner_of(server)
        try:
            answer = await self._act(action, spawner)
        except Unavailable as problem:
            raise web.HTTPError(
                503, f"The scheduler does not answer. {problem.remedy}"
            ) from problem
        except (SchedulerError, HostError) as problem:
            raise web.HTTPError(409, str(problem)) from problem
        self.finish(json.dumps(answer))

    async def _act(self, action: str, spawner: GpuSessionMixin) -> dict[str, Any]:
        if action in ("resume", "open"):
            return await self._open(spawner)
        if action == "suspend":
            return await self._suspend(spawner)
        workload = await spawner.plugin.find(spawner.key)
        if action == "fresh":
            return await self._fresh(spawner, workload)
        if workload is None:
            raise HostError("There is no session any more.", remedy="Reload the page.")
        if action == "cancel":
            await self._cancel(spawner)
        elif action == "discard":
            await self._discard(spawner, workload)
        else:
            await self._stop(spawner, workload)
        return {"done": action}

    async def _cancel(self, spawner: GpuSessionMixin) -> None:
        """End an opening: a suspended session goes back to that, a new one is forgotten."""
        hub_side = cast(Any, spawner)
        if hub_side.pending == "spawn" and hub_side._spawn_future:
            hub_side._spawn_future.cancel()
            await asyncio.wait({hub_side._spawn_future}, timeout=CANCEL_SECONDS)
            if not hub_side.pending:
                await self.stop_single_user(self.current_user, spawner.name)
        workload = await spawner.plugin.find(spawner.key)
        if workload is None or workload.phase not in OPENING:
            return
        keeps = workload.snapshot is not None
        await spawner.plugin.desire(
            workload.id,
            Desired.SUSPENDED if keeps else Desired.STOPPED,
            actor=self.current_user.name,
            reason="cancelled by its owner",
        )

    async def _suspend(self, spawner: GpuSessionMixin) -> dict[str, Any]:
        reason = spawner.host.why_not_freezable(spawner.workload_id)
        if reason:
            raise HostError(f"This session cannot be suspended: {reason}")
        actor, why = self.current_user.name, "suspended by its owner"
        try:
            workload = await spawner.plugin.find(spawner.key)
            if workload is None:
                raise HostError("There is no session to suspend.", remedy="Reload the page.")
            await spawner.plugin.desire(workload.id, Desired.SUSPENDED, actor=actor, reason=why)
        except Unavailable:
            await spawner.host.ask(spawner.workload_id, "suspend", actor=actor, reason=why)
        return {"done": "suspend"}

    async def _stop(self, spawner: GpuSessionMixin, workload: Workload) -> None:
        actor, why = self.current_user.name, "stopped by its owner"
        await spawner.plugin.desire(workload.id, Desired.STOPPED, actor=actor, reason=why)
        if workload.phase is Phase.RUNNING:
            try:
                await spawner.host.ask(workload.id, "stop", actor=actor, reason=why)
            except NotReachable as problem:
                self.log.info("%s stops at its next heartbeat: %s", workload.key, problem)

    async def _discard(self, spawner: GpuSessionMixin, workload: Workload) -> None:
        if workload.phase is not Phase.SUSPENDED:
            raise HostError(
                f"Only a suspended session can be discarded; this one is {workload.phase}."
            )
        await spawner.discard(workload)

    async def _fresh(self, spawner: GpuSessionMixin, workload: Workload | None) -> dict[str, Any]:
        if workload is not None and workload.phase is Phase.SUSPENDED:
            await self._discard(spawner, workload)
        elif workload is not None:
            raise HostError(f"The session is {workload.phase}.", remedy="Suspend or stop it first.")
        choice = url_path_join(
            self.hub.base_url,
            "spawn",
            self.current_user.escaped_name,
            url_escape_path(spawner.name),
        )
        return {"done": "fresh", "url": choice}

    async def _settle(self, spawner: GpuSessionMixin) -> None:
        """Let the Hub take note of an end that it has not heard of yet, or is still busy with:
        nobody should have to press Resume twice."""
        hub_side = cast(Any, spawner)
        deadline = asyncio.get_running_loop().time() + SETTLE_SECONDS
        while hub_side.active and hub_side.pending != "spawn":
            if hub_side.ready and await hub_side.poll_and_notify() is None:
                return
            if asyncio.get_running_loop().time() > deadline:
                raise HostError("The server is still being stopped.", remedy="Try again shortly.")
            await asyncio.sleep(0.1)

    async def _open(self, spawner: GpuSessionMixin, *, user: Any = None) -> dict[str, Any]:
        """Start the server with what it had last; answers with the page that shows progress.
        `user` is its owner, if that is not who asks."""
        user, server = user or self.current_user, spawner.name
        await self._settle(spawner)
        if not cast(Any, spawner).active:
            fresh = user.get_or_create_spawner(
                server, spawner_display(spawner), replace_failed=True
            )
            fresh._spawn_future = None
            start = asyncio.ensure_future(self.spawn_single_user(user, server))
            await asyncio.wait([start], timeout=FIRST_LOOK_SECONDS)
            if start.done():
                start.result()
            else:
                start.add_done_callback(lambda task: task.cancelled() or task.exception())
        pending = url_path_join(
            self.hub.base_url, "spawn-pending", user.escaped_name, url_escape_path(server)
        )
        return {"done": "resume", "url": pending}


async def _forecast(plugin: SchedulerPlugin, workload: Workload) -> Forecast | None:
    """What would come of a resume now; None if that cannot be said."""
    if workload.phase is not Phase.SUSPENDED:
        return None
    try:
        return (await plugin.why(workload.id)).resume
    except SchedulerError:
        return None  # it has ended meanwhile, or the scheduler: the next look says so


def spawner_display(spawner: GpuSessionMixin) -> str:
    """The name that people gave the server."""
    return str(getattr(spawner, "display_name", "") or spawner.name)


def _read(body: Any) -> tuple[str, str]:
    """The action and the server's name. Raises 400 with what would be right."""
    if not isinstance(body, dict):
        raise web.HTTPError(400, 'Send a JSON object: {"server": "", "action": "suspend"}.')
    action, server = body.get("action"), body.get("server", "")
    if action not in ACTIONS:
        raise web.HTTPError(400, f"Unknown action. Actions are: {', '.join(ACTIONS)}.")
    if not isinstance(server, str):
        raise web.HTTPError(400, "server must be the name of a server (empty: the default one).")
    return str(action), server


HANDLERS: list[tuple[str, type[BaseHandler]]] = [
    (r"/hubernate/sessions", SessionsHandler),
    (r"/hubernate/sessions/action", SessionActionHandler),
]
"""For `c.JupyterHub.extra_handlers`."""
