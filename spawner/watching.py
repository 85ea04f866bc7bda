"""While a session runs: does it live, where does it answer, and who tells the Hub when it ends."""

from __future__ import annotations

import asyncio
import time
from typing import Any, ClassVar

from scheduler_bridge.model.workload import Grant, Workload
from spawner.hosting import Launch, Seen
from spawner.traits import SessionTraits

ADOPT_AGAIN_SECONDS = 5.0
ADOPT_READY_SECONDS = 60.0


class SessionWatch(SessionTraits):
    """The Hub's poll, and a task per running session that does not wait for it."""

    _adoptions: ClassVar[dict[str, asyncio.Task[None]]] = {}

    def __init__(self, **kwargs: Any) -> None:
        self._is_starting = False
        self._watcher: asyncio.Task[None] | None = None
        self._rerouting: asyncio.Task[None] | None = None
        super().__init__(**kwargs)

    async def make_launch(self, mode: str, workload: Workload, grant: Grant) -> Launch:
        """What a supervisor of this session is to do."""
        raise NotImplementedError

    async def poll(self) -> int | None:
        """None while anything of the session may live or is being started, else its exit code (0
        after a suspend). Reads two small files; asks nobody; never raises."""
        if self._is_starting:
            return None
        seen = self.look()
        if seen.supervisor_alive:
            self._follow_port(seen)
            return None
        if seen.sandbox_alive:
            self._adopt()
            return None
        return seen.exit_code

    def _follow_port(self, seen: Seen) -> None:
        """The session may come back on another port after its network was taken away from it (a
        suspend that was undone, a new supervisor): lead the proxy there."""
        port = seen.status.host_port if seen.is_ready and seen.status is not None else 0
        if not port or self.pending or self.server is None or self.server.port == port:
            return
        self.log.warning("%s answers on port %d now, not %d", self.key, port, self.server.port)
        self.server.ip, self.server.port = "127.0.0.1", port
        self.user.db.commit()
        self._rerouting = asyncio.create_task(self._reroute())

    async def _reroute(self) -> None:
        try:
            await self.user.settings["proxy"].add_user(self.user, self.name)
        except Exception:
            self.log.exception(
                "%s: the proxy did not take the new port; the Hub's check mends it", self.key
            )

    def _adopt(self) -> asyncio.Task[None]:
        """Give a live tree whose supervisor died a new one; at most one attempt at a time."""
        workload_id, running = self.workload_id, self._adoptions
        if workload_id not in running:
            running[workload_id] = asyncio.create_task(self._adopt_now(workload_id))
            running[workload_id].add_done_callback(lambda _: running.pop(workload_id, None))
        return running[workload_id]

    async def _adopt_now(self, workload_id: str) -> None:
        try:
            workload = await self.plugin.get(workload_id)
            grant = await self.plugin.take(workload_id)
            await self.host.launch(await self.make_launch("adopt", workload, grant))
            await self._until_ready(ADOPT_READY_SECONDS)
            self._follow_port(self.look())
            self.log.warning("%s: its supervisor had died; a new one took over", self.key)
        except Exception as problem:
            self.log.warning(
                "%s runs without a supervisor and could not get one yet: %s", self.key, problem
            )
            await asyncio.sleep(ADOPT_AGAIN_SECONDS)

    async def _until_ready(self, limit: float) -> None:
        deadline = time.monotonic() + limit
        while not self.look().is_ready and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.1)

    def start_polling(self) -> None:
        """The Hub calls this right after a start and for each session it finds at its own start."""
        super().start_polling()  # type: ignore[misc]
        if self._watcher is None or self._watcher.done():
            self._watcher = asyncio.create_task(self._watch())

    def stop_polling(self) -> None:
        super().stop_polling()  # type: ignore[misc]
        if self._watcher is not None and self._watcher is not asyncio.current_task():
            self._watcher.cancel()

    async def _watch(self) -> None:
        """Tell the Hub of the session's end at once, not at its next poll."""
        while True:
            await self.host.wait_end(self.workload_id)
            # in the middle of a start or stop the Hub looks for itself; it tells nobody of the end
            while self.pending:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            if await self.poll_and_notify() is not None:  # type: ignore[attr-defined]
                return
            adoption = self._adoptions.get(self.workload_id)
            if adoption is not None:
                await asyncio.wait({adoption})
            await asyncio.sleep(0.1)


def url_of(port: int) -> str:
    """Where a session's server answers on this machine."""
    return f"http://127.0.0.1:{port}"
