"""One supervisor as a process of its own: log, order, the real machine and scheduler."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from scheduler_bridge.client import SchedulerClient
from snapshot.linux import become_subreaper
from spawner.supervisor.local_machine import LocalMachine
from spawner.supervisor.order import SupervisorOrder, read_order
from spawner.supervisor.program import AlreadySupervisedError, supervise
from spawner.supervisor.status import LOG_FILE, Outcome
from spawner.supervisor.wishes import Action, Wishes

if TYPE_CHECKING:
    from spawner.supervisor.prepared import Prepared

_log = logging.getLogger(__name__)


def open_log(directory: Path, workload_id: str) -> None:
    """Log to the folder's `supervisor.log` (0600); every line carries the workload's id."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    stream = os.fdopen(os.open(directory / LOG_FILE, flags, 0o600), "a", buffering=1)
    handler = logging.StreamHandler(stream)
    shown = workload_id.replace("%", "%%")
    pattern = f"%(asctime)s %(levelname)s {shown} %(name)s: %(message)s"
    handler.setFormatter(logging.Formatter(pattern))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    for chatty in ("httpx", "httpcore", "botocore", "boto3", "urllib3", "asyncio"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


def run(order_file: str, prepared: Prepared | None = None) -> int:
    """Supervise as the order says; returns the exit status."""
    os.umask(0o022)
    order = read_order(Path(order_file))
    open_log(Path(order.directory), order.workload_id)
    become_subreaper()
    _log.info("supervisor %d begins: %s", os.getpid(), order.mode)
    if prepared is not None and order.mode != "resume":
        prepared.spare.dismiss()
    try:
        outcome = asyncio.run(_supervise(order, prepared))
    except AlreadySupervisedError as error:
        _log.error("%s", error)
        return 1
    except Exception:
        _log.exception("the supervisor failed; what it started goes on and can be adopted")
        return 1
    _log.info("supervisor ends: %s", outcome or "detached")
    return 0


def listen_to_signals(wishes: Wishes) -> None:
    """SIGTERM asks for a suspend (a job: its end), SIGUSR1 to leave the sandbox alive."""
    loop = asyncio.get_running_loop()
    for number, action in ((signal.SIGTERM, Action.SUSPEND), (signal.SIGUSR1, Action.DETACH)):
        reason = f"the supervisor was sent {number.name}"
        ask = functools.partial(wishes.ask, action, reason=reason, actor="signal")
        loop.add_signal_handler(number, ask)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


async def _supervise(order: SupervisorOrder, prepared: Prepared | None) -> Outcome | None:
    scheduler, wishes = SchedulerClient(order.scheduler), Wishes()
    listen_to_signals(wishes)
    try:
        return await supervise(order, LocalMachine(order, prepared), scheduler, wishes)
    finally:
        await scheduler.aclose()
