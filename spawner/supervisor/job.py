"""The life of a job, from its start to its outcome."""

from __future__ import annotations

import logging

from scheduler_bridge.model.phases import Phase
from spawner.supervisor import bringup
from spawner.supervisor.context import Context
from spawner.supervisor.machine import MachineError
from spawner.supervisor.recovery import conclude
from spawner.supervisor.status import Outcome, Status
from spawner.supervisor.waiting import until_event
from spawner.supervisor.wishes import Action, Wish

_log = logging.getLogger(__name__)


class JobLife:
    """Drives one attempt of a job. A wish to suspend is a preemption: it is queued again."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def run(self, earlier: Status | None) -> Outcome | None:
        """Live. None: detached, the sandbox lives on without a supervisor."""
        context = self._context
        try:
            if context.order.mode != "adopt":
                await bringup.start(context)
            elif not await bringup.adopt(context, earlier):
                return await conclude(context)
        except MachineError as error:
            return await context.finish(
                Phase.FAILED,
                Outcome.FAILED,
                error.message,
                error=error.message,
                remedy=error.remedy,
            )
        context.enter(Phase.RUNNING, "started" if context.order.mode != "adopt" else "adopted")
        event = await until_event(context)
        if not isinstance(event, Wish):
            return await self._ended()
        if event.action is Action.DETACH:
            return None
        return await self._end(event)

    async def _ended(self) -> Outcome:
        code = await self._collect()
        if code == 0:
            return await self._context.finish(
                Phase.SUCCEEDED, Outcome.EXITED, "the command succeeded", exit_code=0
            )
        words = "it is not known how" if code is None else f"exit code {code}"
        cause = f"the command failed ({words})"
        return await self._context.finish(
            Phase.FAILED,
            Outcome.EXITED,
            cause,
            exit_code=code,
            error=f"The job: {cause}.",
            remedy=f"Its output is in {self._context.directory}/run/output.log.",
        )

    async def _collect(self) -> int | None:
        context = self._context
        code = context.machine.exit_code(context.sandbox, context.tree)
        await bringup.remove(context)
        return code

    async def _end(self, wish: Wish) -> Outcome:
        """Cancelled, or asked to yield: SIGTERM, grace, SIGKILL, and proof that it is gone."""
        context = self._context
        stopping = wish.action is Action.STOP
        context.enter(Phase.CANCELLING if stopping else Phase.PREEMPTING, wish.reason)
        context.fence.open()
        await context.machine.terminate(context.tree, context.order.grace_seconds)
        code = await self._collect()
        if stopping:
            return await context.finish(
                Phase.CANCELLED, Outcome.STOPPED, wish.reason or "cancelled", exit_code=code
            )
        if code == 0:
            # It used its grace to finish: running it again would only repeat it.
            return await context.finish(
                Phase.SUCCEEDED, Outcome.EXITED, "it finished within its grace", exit_code=0
            )
        return await context.finish(
            Phase.QUEUED, Outcome.PREEMPTED, wish.reason or "preempted", exit_code=code
        )
