"""A session that outlived a stop of its server is given back to the Hub, without a click.

When a suspend fails, the session goes on; the Hub however has taken its server down by then, and
never looks again. So it is asked through its own REST API to start the server, which finds the live
session and attaches to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar, Final
from urllib.parse import quote

import httpx
from jupyterhub import orm

from scheduler_bridge.errors import SchedulerError
from scheduler_bridge.model.phases import Desired, Phase
from spawner.traits import SessionTraits

FIRST_LOOK_SECONDS: Final = 1.0
"""A stop that was asked for together with the server's removal gets that long to remove it."""

LOOK_SECONDS: Final = (1.0, 2.0, 5.0, 15.0, 30.0)
TOKEN_SECONDS: Final = 60
ANSWER_SECONDS: Final = 30.0


class SessionRejoining(SessionTraits):
    """At most one attempt per server goes on in this Hub; `rejoin_soon` may be called at any time."""

    _rejoins: ClassVar[dict[str, asyncio.Task[None]]] = {}

    hub: Any

    def rejoin_soon(self) -> None:
        """Have the Hub start this server as soon as it is idle there, if its session lives then."""
        if self.key in self._rejoins:
            return
        task = self._rejoins[self.key] = asyncio.create_task(self._rejoin())
        task.add_done_callback(partial(self._forget_rejoin, self.key))

    def _forget_rejoin(self, key: str, task: asyncio.Task[None]) -> None:
        if self._rejoins.get(key) is task:
            del self._rejoins[key]
        if not task.cancelled() and (problem := task.exception()):
            self.log.error("%s: could not be given back to the Hub", key, exc_info=problem)

    async def _rejoin(self) -> None:
        """Look until the Hub has the server again or the session has ended."""
        await asyncio.sleep(FIRST_LOOK_SECONDS)
        looks = 0
        while self.look().is_live:
            known = self.user.spawners.get(self.name, self)
            if known.ready:
                return
            if not known.pending and await self._is_to_run():
                await self._ask_hub_to_start()
            await asyncio.sleep(LOOK_SECONDS[min(looks, len(LOOK_SECONDS) - 1)])
            looks += 1

    async def _is_to_run(self) -> bool:
        """Whether nobody wants anything else: a start would withdraw a suspend."""
        try:
            workload = await self.plugin.get(self.workload_id)
        except SchedulerError:
            return False
        runs = workload.phase is Phase.RUNNING and workload.desired is Desired.RUNNING
        return runs and self.look().is_ready

    async def _ask_hub_to_start(self) -> None:
        server = f"servers/{quote(self.name, safe='')}" if self.name else "server"
        url = f"{self.hub.api_url}/users/{quote(self.user.name, safe='')}/{server}"
        with self._short_token() as token:
            headers = {"Authorization": f"token {token}"}
            try:
                async with httpx.AsyncClient(trust_env=False, timeout=ANSWER_SECONDS) as client:
                    # no body: the Hub keeps the options that were chosen
                    answer = await client.post(url, headers=headers)
            except httpx.HTTPError as problem:
                self.log.warning("%s: the Hub did not answer itself: %s", self.key, problem)
                return
        self.log.warning(
            "%s lives on after its stop; the Hub was asked to show it again (%d)",
            self.key,
            answer.status_code,
        )

    @contextmanager
    def _short_token(self) -> Iterator[str]:
        """The right to start this one server, for the length of a request."""
        token = str(
            self.user.new_api_token(
                note="brings a session back that outlived a stop of its server",
                scopes=[f"start:servers!server={self.user.name}/{self.name}"],
                expires_in=TOKEN_SECONDS,
            )
        )
        try:
            yield token
        finally:
            known = orm.APIToken.find(self.user.db, token)
            if known is not None:
                self.user.db.delete(known)
                self.user.db.commit()


__all__ = ["SessionRejoining"]
