"""Puts the parts of one supervisor together and runs them."""

from __future__ import annotations

import asyncio
import fcntl
import functools
import logging
import os
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

from scheduler_bridge.model.phases import Kind, Phase
from scheduler_bridge.model.workload import Report
from scheduler_bridge.plugin import SchedulerPlugin
from snapshot import cgroups, proc
from spawner.supervisor import bringup, control, inner, inside
from spawner.supervisor.board import Board
from spawner.supervisor.context import Context
from spawner.supervisor.courier import Courier
from spawner.supervisor.ear import Ear
from spawner.supervisor.fencing import Fence
from spawner.supervisor.filling_watch import watch_filling
from spawner.supervisor.heartbeat import Heartbeat, Rhythm, handle_of
from spawner.supervisor.job import JobLife
from spawner.supervisor.keeper import Keeper
from spawner.supervisor.link_watch import watch_link
from spawner.supervisor.machine import Machine, run_directory
from spawner.supervisor.order import SupervisorOrder
from spawner.supervisor.sampler import Sampler
from spawner.supervisor.session import SessionLife
from spawner.supervisor.status import Outcome, Status, read_status
from spawner.supervisor.telling import tell_state
from spawner.supervisor.wishes import Wishes

_log = logging.getLogger(__name__)

LOCK_FILE = "supervisor.lock"
LOCK_SECONDS = 15.0
LOCK_POLL_SECONDS = 0.1


class AlreadySupervisedError(Exception):
    """Another supervisor is at work in this folder."""


async def take_folder(directory: Path) -> int:
    """Lock the folder for this process. Its predecessor may need a moment to leave.

    Returns the descriptor that holds the lock. Raises `AlreadySupervisedError`.
    """
    descriptor = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = asyncio.get_running_loop().time() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            if asyncio.get_running_loop().time() > deadline:
                os.close(descriptor)
                raise AlreadySupervisedError(
                    f"Another supervisor is at work in {directory}."
                ) from None
        await asyncio.sleep(LOCK_POLL_SECONDS)


def _first_status(order: SupervisorOrder, earlier: Status | None) -> Status:
    adopts = order.mode == "adopt" and earlier is not None
    return Status(
        workload_id=order.workload_id,
        phase=earlier.phase if adopts and earlier else bringup.phase_of(order.mode).value,
        supervisor=proc.identify(os.getpid()),
        sandbox=earlier.sandbox if adopts and earlier else None,
        # the order of an adoption does not say from what the tree came back
        snapshot=order.snapshot or (earlier.snapshot if adopts and earlier else ""),
        facts=dict(order.facts),
    )


def _build(
    order: SupervisorOrder,
    machine: Machine,
    scheduler: SchedulerPlugin,
    wishes: Wishes,
    earlier: Status | None,
    rhythm: Rhythm | None,
    now: Callable[[], float],
) -> tuple[Context, Sampler]:
    """Wire the parts. The lambdas read `context` only once the tasks run."""
    board = Board(Path(order.directory), _first_status(order, earlier))
    courier = Courier(scheduler, order.lease_id, order.credential)
    fence = Fence(
        order.fence_seconds,
        halt=lambda: _halt(context),
        go_on=lambda stood: _go_on(context, stood),
        clock=time.monotonic,
        needed=bool(order.devices),
    )
    heartbeat = Heartbeat(
        scheduler,
        order.lease_id,
        order.credential,
        report=lambda: _report(context, sampler),
        wishes=wishes,
        fence=fence,
        courier=courier,
        rhythm=rhythm,
    )
    context = Context(order, machine, board, wishes, courier, fence, heartbeat, Ear(now), now=now)
    sampler = Sampler(context)
    return context, sampler


def _report(context: Context, sampler: Sampler) -> Report:
    status = context.board.status
    return Report(
        epoch=context.order.epoch,
        phase=Phase(status.phase),
        signals=sampler.sample().as_dict(),
        handle=handle_of(status.supervisor, context.process, context.order.directory),
    )


def _halt(context: Context) -> None:
    """Which processes were halted is written down: a successor must let exactly these go on."""
    halted = context.machine.halt(context.process) if context.process is not None else ()
    context.note("halted", [asdict(process) for process in halted])


def _go_on(context: Context, stood_seconds: float) -> None:
    """The gap is told first: who counts idle time inside would act on it at once."""
    try:
        if context.process is not None:
            bringup.announce(context, seconds=stood_seconds)
    finally:
        context.machine.go_on(context.halted())
        context.note("halted", [])


async def supervise(
    order: SupervisorOrder,
    machine: Machine,
    scheduler: SchedulerPlugin,
    wishes: Wishes,
    *,
    rhythm: Rhythm | None = None,
    now: Callable[[], float] = time.time,
) -> Outcome | None:
    """Run one supervisor to its outcome. None: detached. `wishes` takes what this process itself
    is asked for (signals).

    Raises `AlreadySupervisedError`. The caller closes `scheduler`.
    """
    directory = Path(order.directory)
    lock = await take_folder(directory)
    try:
        earlier = read_status(directory)
        _keep_within_limits(order)
        inside.prepare(run_directory(directory), order.identity.uid, order.identity.gid)
        context, sampler = _build(order, machine, scheduler, wishes, earlier, rhythm, now)
        outcome = await _live(context, sampler, earlier)
        if outcome is not None:
            cgroups.remove(directory)
        return outcome
    finally:
        os.close(lock)


def _keep_within_limits(order: SupervisorOrder) -> None:
    """Where the machine cannot, the session runs all the same; the doctor says so beforehand."""
    try:
        processes = cgroups.most_processes(order.processes)
        limits = cgroups.Limits(order.memory_bytes, order.cpus, processes)
        cgroups.apply(Path(order.directory), limits)
    except (cgroups.CgroupError, OSError) as error:
        _log.error("memory, processors and processes are not limited: %s", error)


async def _live(context: Context, sampler: Sampler, earlier: Status | None) -> Outcome | None:
    """One life, with everything beside it that listens, tells and watches."""
    order, keeper = context.order, Keeper()
    directory, who = Path(order.directory), order.identity
    with (
        closing(control.bind(directory)) as asked,
        closing(inner.bind(run_directory(directory), who.uid, who.gid)) as told,
    ):
        server = control.ControlServer(asked, context.board, context.wishes)
        keeper.keep("control", server.run)
        keeper.keep("inner", inner.InnerSocket(told, context.ear.hear).run)
        keeper.keep("courier", context.courier.run)
        keeper.keep("heartbeat", context.heartbeat.run)
        keeper.keep("fence", context.fence.run)
        keeper.keep("sampler", sampler.run)
        keeper.keep("filling", functools.partial(watch_filling, context))
        keeper.keep("telling", functools.partial(tell_state, context, sampler.outlook))
        keeper.keep("link", functools.partial(watch_link, context))
        try:
            life = SessionLife(context) if order.kind == Kind.SESSION else JobLife(context)
            outcome = await life.run(earlier)
            if outcome is not None:
                await server.told_all()
            return outcome
        finally:
            await keeper.close()
