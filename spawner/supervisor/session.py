"""The life of a session, from its start to its outcome."""

from __future__ import annotations

import asyncio
import logging

from scheduler_bridge.model.phases import Phase
from spawner.arrival import FACT
from spawner.supervisor import bringup
from spawner.supervisor.context import Context
from spawner.supervisor.machine import MachineError, MemoryLostError
from spawner.supervisor.recovery import conclude
from spawner.supervisor.status import Outcome, Status
from spawner.supervisor.suspend import CoolDown, suspend
from spawner.supervisor.waiting import Ended, Filled, until_event
from spawner.supervisor.wishes import Action, Wish

_log = logging.getLogger(__name__)

MOST_LOSSES = 3
"""How often a session is brought back because its memory could not be completed."""

LOST_REMEDY = "Resume it again; filler.log beside this session's log tells more."
START_FRESH = "Start fresh: your files are untouched. The snapshot is kept for inspection."


class SessionLife:
    """Drives one session."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._cool_down = CoolDown()
        self._losses = 0

    async def run(self, earlier: Status | None) -> Outcome | None:
        """Live. None: detached, the sandbox lives on without a supervisor."""
        outcome = await self._bring_up(earlier)
        if outcome is not None:
            return outcome
        while True:
            event = await until_event(self._context, self._cool_down)
            if isinstance(event, Filled):
                if (outcome := await self._filled(event)) is not None:
                    return outcome
                continue
            if isinstance(event, Ended):
                return await self._exited()
            if event.action is Action.DETACH:
                return None
            outcome = await self._obey(event)
            self._context.wishes.answered(event)
            if outcome is not None:
                return outcome

    async def _bring_up(self, earlier: Status | None) -> Outcome | None:
        match self._context.order.mode:
            case "resume":
                return await self._resume()
            case "adopt":
                return await self._adopt(earlier)
            case _:
                return await self._start()

    async def _start(self) -> Outcome | None:
        context = self._context
        try:
            await bringup.start(context)
        except MachineError as error:
            return await self._failed(error.message, error.remedy)
        if not await bringup.until_ready(context, context.order.ready_seconds):
            return await self._never_ready()
        self._running("started")
        return None

    async def _never_ready(self) -> Outcome:
        context = self._context
        if wish := context.wishes.stop():
            return await self._stop(wish)
        log = f"Its output is in {context.directory}/run/output.log."
        if context.machine.is_alive(context.tree):
            error = f"The server did not answer within {context.order.ready_seconds:g} s."
            code = None
        else:
            code = context.machine.exit_code(context.sandbox, context.tree)
            error = f"The server ended before it answered (exit code {_words(code)})."
        await bringup.remove(context)
        return await self._failed(error, log, exit_code=code)

    async def _failed(self, error: str, remedy: str, exit_code: int | None = None) -> Outcome:
        return await self._context.finish(
            Phase.FAILED, Outcome.FAILED, error, error=error, remedy=remedy, exit_code=exit_code
        )

    async def _resume(self) -> Outcome | None:
        context = self._context
        try:
            await bringup.resume(context)
        except MachineError as error:
            return await self._not_resumed(error.message, error.remedy)
        context.enter(Phase.FILLING, "its memory is coming back")
        if not await bringup.until_ready(context, context.order.ready_seconds):
            return await self._never_resumed()
        if context.filling is None:
            self._running("resumed")
        else:
            # People may come in; the scheduler hears of `running` when nothing is missing.
            _log.info("answers while its memory arrives")
            context.board.update(host_port=context.sandbox.network.host_port)
        return None

    async def _filled(self, event: Filled) -> Outcome | None:
        """All of its memory is there; or it is brought back once more, from the same snapshot."""
        context = self._context
        if event.lost:
            return await self._again(event.lost)
        if context.filling is not None:
            context.filling.close()
            context.filling = None
        context.note(FACT, {})
        self._running("all of its memory is there")
        return None

    async def _again(self, why: str) -> Outcome | None:
        """From the same snapshot; not on GPUs that are no longer ours, and not for ever."""
        context, wish = self._context, self._context.wishes.current()
        self._losses += 1
        if wish is not None and wish.action is not Action.SUSPEND:
            return await self._never_resumed(wish)
        await bringup.remove(context)
        if self._losses > MOST_LOSSES:
            return await self._not_resumed(why, LOST_REMEDY)
        _log.error("brought back again from its snapshot: %s", why)
        context.board.update(host_port=0, error=why, remedy="It is brought back again.")
        return await self._resume()

    async def _never_resumed(self, wish: Wish | None = None) -> Outcome:
        context = self._context
        await bringup.remove(context)
        if wish := (wish or context.wishes.stop()):
            # The scheduler knows what to do with a suspended session that is not wanted.
            cause = wish.reason or f"stopped by {wish.actor}"
            return await context.finish(Phase.SUSPENDED, Outcome.STOPPED, cause)
        return await self._not_resumed("The resumed server does not answer.", "")

    async def _not_resumed(self, error: str, remedy: str) -> Outcome:
        """Back to suspended with the snapshot that there was."""
        context = self._context
        return await context.finish(
            Phase.SUSPENDED,
            Outcome.FAILED,
            error,
            error=error,
            remedy=remedy or START_FRESH,
        )

    async def _adopt(self, earlier: Status | None) -> Outcome | None:
        context = self._context
        try:
            if not await bringup.adopt(context, earlier):
                return await conclude(context)
        except MemoryLostError as error:
            return await self._again(error.message)
        if context.filling is not None:
            if await bringup.until_ready(context, context.order.ready_seconds):
                context.board.update(host_port=context.sandbox.network.host_port)
            return None
        if await bringup.until_ready(context, context.order.ready_seconds):
            self._running("its supervisor was replaced")
            return None
        if not context.machine.is_alive(context.tree):
            return await self._exited()
        # A server that is merely slow is still somebody's memory.
        _log.warning("the adopted server does not answer yet")
        self._running("its supervisor was replaced; the server does not answer yet")
        return None

    def _running(self, cause: str) -> None:
        context = self._context
        port = context.sandbox.network.host_port
        context.enter(Phase.RUNNING, cause, host_port=port, error="", remedy="")

    async def _obey(self, wish: Wish) -> Outcome | None:
        context = self._context
        match wish.action:
            case Action.STOP:
                return await self._stop(wish)
            case Action.YIELD_LEASE:
                return await self._yield_lease(wish)
            case _:
                outcome = await suspend(context, wish.reason or f"asked for by {wish.actor}")
                if outcome is None:
                    self._cool_down.failed(asyncio.get_running_loop().time())
                return outcome

    async def _stop(self, wish: Wish) -> Outcome:
        context = self._context
        context.fence.open()
        if context.filling is not None:
            return await self._never_resumed(wish)
        await context.machine.terminate(context.tree, context.order.grace_seconds)
        code = context.machine.exit_code(context.sandbox, context.tree)
        await bringup.remove(context)
        cause = wish.reason or f"stopped by {wish.actor}"
        return await context.finish(Phase.STOPPED, Outcome.STOPPED, cause, exit_code=code)

    async def _yield_lease(self, wish: Wish) -> Outcome:
        """The GPUs are no longer ours: keep the memory if possible, and leave in any case.

        Memory that has not arrived is in the snapshot, which is still the session's last.
        """
        context = self._context
        if context.filling is not None:
            return await self._stop(wish)
        outcome = await suspend(context, f"the lease was lost: {wish.reason}")
        if outcome is not None:
            return outcome
        return await self._stop(wish)

    async def _exited(self) -> Outcome:
        context = self._context
        code = context.machine.exit_code(context.sandbox, context.tree)
        if context.filling is not None:
            await bringup.remove(context)
            ended = f"The resumed server ended (exit code {_words(code)})."
            return await self._not_resumed(ended, "")
        await bringup.remove(context)
        cause = f"the server ended by itself (exit code {_words(code)})"
        return await context.finish(Phase.STOPPED, Outcome.EXITED, cause, exit_code=code)


def _words(code: int | None) -> str:
    return "unknown" if code is None else str(code)
