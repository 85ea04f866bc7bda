"""How a sandbox comes to be: started, restored, or found alive."""

from __future__ import annotations

import asyncio
import logging

import httpx

from scheduler_bridge.model.phases import Phase
from snapshot.model import Process
from spawner.supervisor import inside
from spawner.supervisor.context import Context, halted_in, sandbox_spec
from spawner.supervisor.machine import MachineError
from spawner.supervisor.status import Status

_log = logging.getLogger(__name__)

READY_POLL_SECONDS = 0.05
READY_POLL_SLOWEST = 0.5


async def start(context: Context) -> None:
    """Start a new sandbox and join it to the network. Raises `MachineError`, nothing left."""
    _describe(context, 0)
    # A job's command begins with its network; a server takes longer to come up anyway.
    held = not context.order.serve
    try:
        await context.machine.clear(context.sandbox)
        context.process = await context.machine.start(context.sandbox, held=held)
        context.board.update(sandbox=context.process)
        await context.connect()
        await context.machine.release(context.process, context.sandbox)
    except MachineError:
        await remove(context)
        raise


async def resume(context: Context) -> None:
    """Restore the snapshot that the status names, and join it to the network. Raises `MachineError`,
    nothing left."""
    _describe(context, 0)
    announce(context, seconds=None)
    inside.tell_identity(context.sandbox, epoch=context.order.epoch)
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        await context.machine.clear(context.sandbox)
        thawed = await context.machine.thaw(context.board.status.snapshot, context.sandbox)
        context.process, context.filling = thawed.process, thawed.filling
        steps = {**thawed.timings, "thaw": loop.time() - began}
        context.board.update(sandbox=thawed.process, notes=thawed.notes, steps=steps)
        if context.filling is not None:
            context.filling.keep()
        await context.connect()
    except MachineError:
        await remove(context)
        raise
    if thawed.notes:
        announce(context, seconds=None, notes=thawed.notes)


async def adopt(context: Context, earlier: Status | None) -> bool:
    """Take over the sandbox that an earlier supervisor left. False: it is not alive any more.
    Raises `MemoryLostError`: it has to be ended."""
    preferred = earlier.host_port if earlier else 0
    _describe(context, preferred)
    process = context.process = earlier.sandbox if earlier else None
    context.filling = await context.machine.filling(context.board.status.snapshot, context.sandbox)
    if process is None or not context.machine.is_alive(process):
        return False
    if halted := _halted_by(earlier):
        try:  # before anything inside counts the gap as idle time
            announce(context, seconds=None)
        finally:
            context.machine.go_on(halted)
    await context.machine.mend(process, context.sandbox)
    try:
        await context.connect()
    except MachineError as error:
        if not context.machine.is_alive(process):
            return False
        # The tree is what counts; its connection is tried again (see `link_watch`).
        _log.error("adopted without a connection: %s", error)
    await context.machine.release(process, context.sandbox)
    return True


def _halted_by(earlier: Status | None) -> tuple[Process, ...]:
    """What an earlier supervisor halted and could not let go on."""
    return halted_in(earlier.facts) if earlier is not None else ()


async def until_ready(context: Context, within: float) -> bool:
    """Wait until the session's server answers. False: it ended, somebody wants it to stop, or
    `within` seconds passed."""
    ended = asyncio.ensure_future(context.machine.ended(context.tree))
    unwanted = asyncio.ensure_future(context.wishes.until_stop())
    answers = asyncio.ensure_future(_until_answer(context))
    waits = {ended, unwanted, answers}
    try:
        await asyncio.wait(waits, timeout=within, return_when=asyncio.FIRST_COMPLETED)
        return answers.done() and not ended.done()
    finally:
        for task in waits:
            task.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


async def _until_answer(context: Context) -> None:
    port = context.sandbox.network.host_port
    url = f"http://127.0.0.1:{port}{context.order.ready_path}"
    pause = READY_POLL_SECONDS
    # Loading the certificates that plain HTTP does not need takes as long as a session's answer.
    async with httpx.AsyncClient(trust_env=False, verify=False, timeout=5.0) as client:  # noqa: S501
        while True:
            try:
                # Any answer of the server itself will do; 5xx may come from one that still starts.
                if (await client.get(url)).status_code < 500:
                    return
            except httpx.HTTPError:
                pass
            await asyncio.sleep(pause)
            pause = min(1.2 * pause, READY_POLL_SLOWEST)


async def remove(context: Context) -> None:
    """Leave nothing of a sandbox: processes ended without grace, network and mounts gone."""
    if context.filling is not None:
        # After the tree: it must not run for a moment with nobody to fill it.
        filling, context.filling = context.filling, None
        await remove(context)
        filling.close()
        return
    if context.process is not None:
        await context.machine.terminate(context.process, 0.0)
    await context.machine.disconnect(context.sandbox)


def _describe(context: Context, preferred_port: int) -> None:
    context.spec = sandbox_spec(context.order, preferred_port)
    context.describe_gpus()


def announce(context: Context, *, seconds: float | None, notes: tuple[str, ...] = ()) -> None:
    """Tell the server extension that time passed without it."""
    epoch, now = context.order.epoch, context.now()
    inside.announce_gap(context.sandbox, epoch=epoch, now=now, seconds=seconds, notes=notes)


def phase_of(order_mode: str) -> Phase:
    """The phase in which a supervisor begins."""
    return Phase.RESUMING if order_mode == "resume" else Phase.STARTING
