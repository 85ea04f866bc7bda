"""Sessions of this machine: `LocalSpawner` and the host that starts supervisors here.

A supervisor is a process of its own, nobody's child: it outlives the Hub, and is known by PID and
start time in its `status.json`.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from jupyterhub.spawner import Spawner
from pydantic import ValidationError
from traitlets import Dict, Integer, Unicode, default
from traitlets import List as ListTrait

from scheduler_bridge.model.workload import SnapshotRef, Workload
from snapshot import proc
from snapshot.copying import copy_snapshot
from snapshot.errors import SnapshotError
from snapshot.model import Process, SnapshotKey, StoreSettings
from snapshot.repository import open_repository
from spawner.base import GpuSessionMixin
from spawner.hosting import HostError, Launch, LaunchFailed, NotReachable, Seen, SessionHost
from spawner.identity import IdentityBook, NameRefusedError
from spawner.local_forking import ForkFailedError, copy_folders
from spawner.local_order import (
    ORDER_FILE,
    Placed,
    SupervisorNotStartedError,
    Task,
    session_order,
    start_supervisor,
    warm_supervisors,
    workload_directory,
)
from spawner.schedulers import read_json
from spawner.site import LocalSite, read_site
from spawner.supervisor import client
from spawner.supervisor.heartbeat import handle_of
from spawner.supervisor.order import SupervisorOrder
from spawner.supervisor.recovery import reference
from spawner.supervisor.status import Status, read_status
from spawner.warm import WarmSupervisors

LOOK_SECONDS, NEWS_SECONDS = 0.02, 1.0


@cache
def site_of(path: str, changed: float) -> LocalSite:
    """The site file's content; read again when the file has changed."""
    return read_site(Path(path))


def observe_folder(directory: Path, launched: Process | None = None) -> Seen:
    """What a supervisor's folder and /proc show. Never raises.

    `launched` is the supervisor that was just started, if any: what an earlier one left in the
    folder is not its word.
    """
    status = _status(directory)
    if launched is not None and (status is None or status.supervisor != launched):
        sandbox = status.sandbox if status and not proc.has_ended(launched) else None
        return Seen(None, not proc.has_ended(launched), _lives(sandbox))
    if status is None:
        return Seen()
    if status.outcome is not None:
        return Seen(status)  # written after the sandbox was empty; the writer is just leaving
    return Seen(status, _lives(status.supervisor), _lives(status.sandbox))


def _status(directory: Path) -> Status | None:
    try:
        return read_status(directory)
    except (OSError, ValidationError):
        return None


def _lives(process: Process | None) -> bool:
    return process is not None and not proc.has_ended(process)


class LocalHost:
    """Starts, watches and asks supervisors on this machine."""

    def __init__(self, site: LocalSite) -> None:
        self._site = site
        self._launched: dict[str, Process] = {}

    def _directory(self, workload_id: str) -> Path:
        return workload_directory(self._site, workload_id)

    def observe(self, workload_id: str) -> Seen:
        return observe_folder(self._directory(workload_id), self._launched.get(workload_id))

    async def launch(self, launch: Launch) -> Mapping[str, Any]:
        try:
            order = await asyncio.to_thread(self._order, launch)
            warm = warm_for(self._site.python, self._site.store)
            process = await asyncio.to_thread(
                start_supervisor, order, python=self._site.python, warm=warm
            )
            warm.refill()
        except (NameRefusedError, SupervisorNotStartedError, OSError, ValueError) as error:
            raise LaunchFailed(str(error)) from error
        self._launched[launch.workload.id] = process
        return handle_of(process, None, str(self._directory(launch.workload.id)))

    def _order(self, launch: Launch) -> SupervisorOrder:
        """Blocking: the account may have to be made first."""
        site, workload, grant = self._site, launch.workload, launch.grant
        book = self._book()
        order = session_order(
            site,
            Placed(workload.spec, grant.lease, grant.credential),
            book.account(workload.spec.user),
            inner_root=book.inner_root(workload.id),
            task=Task(
                launch.argv,
                launch.environment,
                mode=launch.mode,
                snapshot=_snapshot_for(launch),
                ready_path=f"{launch.base_url.rstrip('/')}/api",
                memory_bytes=launch.memory_bytes,
                cpus=launch.cpus,
            ),
        )
        reason = order.not_freezable_because or launch.not_freezable_because
        return replace(order, not_freezable_because=reason)

    async def ask(self, workload_id: str, command: str, *, actor: str, reason: str) -> None:
        try:
            await client.ask(self._directory(workload_id), command, actor=actor, reason=reason)
        except (client.NotAnsweringError, client.RefusedError) as error:
            raise NotReachable(str(error)) from error

    async def wait_news(self, workload_id: str, seen: Seen) -> None:
        try:
            async with asyncio.timeout(NEWS_SECONDS):
                async for status in client.watch(self._directory(workload_id)):
                    if status != seen.status:
                        return
        except (client.NotAnsweringError, client.RefusedError, TimeoutError):
            pass
        # It is not listening yet, or not any more.
        await asyncio.sleep(LOOK_SECONDS)

    async def wait_end(self, workload_id: str) -> None:
        seen = self.observe(workload_id)
        process = self._launched.get(workload_id)
        if process is None and seen.status is not None:
            process = seen.status.supervisor
        if process is None:
            return
        tasks = {
            asyncio.create_task(wait_for_end(process)),
            asyncio.create_task(self._wait_outcome(workload_id, process)),
        }
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _wait_outcome(self, workload_id: str, process: Process) -> None:
        """Return with the outcome, which comes a moment before the process's end. Where the
        supervisor's socket does not answer, only its end counts."""
        try:
            async for status in client.watch(self._directory(workload_id)):
                if status.outcome is not None:
                    return
        except (client.NotAnsweringError, client.RefusedError):
            pass
        await wait_for_end(process)

    def remembered_token(self, workload_id: str) -> str:
        environment = read_json(self._directory(workload_id) / ORDER_FILE).get("environment")
        return str((environment or {}).get("JUPYTERHUB_API_TOKEN", ""))

    def why_not_freezable(self, workload_id: str) -> str:
        if self._site.freezable:
            order = read_json(self._directory(workload_id) / ORDER_FILE) if workload_id else {}
            return str(order.get("not_freezable_because") or "")
        return self._site.not_freezable_because or "sessions cannot be suspended on this machine."

    async def fork(self, workload: Workload, new_id: str) -> SnapshotRef:
        try:
            return await asyncio.to_thread(self._fork, workload, new_id)
        except (ForkFailedError, NameRefusedError, SnapshotError, OSError) as error:
            raise HostError(f"The session could not be forked: {error}") from error

    def _fork(self, workload: Workload, new_id: str) -> SnapshotRef:
        if workload.snapshot is None:
            raise ForkFailedError("It has no snapshot.")
        user = workload.spec.user
        identity = self._book().account(user).identity
        copy_folders(self._directory(workload.id), self._directory(new_id), identity)
        shot = workload.snapshot
        key = SnapshotKey(user, new_id, shot.epoch, shot.sequence)
        try:
            repository = open_repository(self._site.store)
            stored = copy_snapshot(repository, shot.key, key, now=time.time())
        except BaseException:
            shutil.rmtree(self._directory(new_id), ignore_errors=True)
            raise
        return reference(stored)

    def _book(self) -> IdentityBook:
        site = self._site
        return IdentityBook(
            site.users_file,
            homes=site.homes_directory,
            first_inner_root=site.first_inner_root,
        )

    async def forget(self, workload: Workload) -> None:
        try:
            await asyncio.to_thread(self._forget, workload)
        except (SnapshotError, OSError) as error:
            raise HostError(
                f"The session has ended, but its snapshot could not be deleted: {error}",
                remedy="It is deleted with the next clean-up.",
            ) from error

    def _forget(self, workload: Workload) -> None:
        if workload.snapshot is not None:
            repository = open_repository(self._site.store)
            for stored in repository.list(workload.spec.user, workload.id):
                repository.remove(stored.manifest)
        self._launched.pop(workload.id, None)
        if not self.observe(workload.id).is_live:
            shutil.rmtree(self._directory(workload.id), ignore_errors=True)
            self._book().release(workload.id)


def _snapshot_for(launch: Launch) -> str:
    snapshot = launch.workload.snapshot
    return snapshot.key if launch.mode == "resume" and snapshot else ""


@cache
def warm_for(python: str, store: StoreSettings) -> WarmSupervisors:
    """One for all spawners of a Hub."""
    return warm_supervisors(python, store)


async def wait_for_end(process: Process) -> None:
    """Return as soon as a process that is not our child has ended."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError:
        return
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    try:
        loop.add_reader(descriptor, ended.set)
        # the PID may have been given to somebody else before it was opened
        if not proc.has_ended(process):
            await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


class LocalSpawner(GpuSessionMixin, Spawner):  # type: ignore[misc]
    """JupyterLab in a sandbox of this machine, with the GPUs of its lease."""

    site_file = Unicode(
        help="""The facts of this machine, written by set-up (`site.json` in the state folder). If
        it is missing, no session can start; run `hubernate doctor`.""",
    ).tag(config=True)
    session_environment = Dict(
        {"UV_USE_IO_URING": "0"},
        help="""Variables of every session. The default keeps libuv off io_uring, whose rings
        cannot be stored with a session.""",
    ).tag(config=True)
    env_keep = ListTrait(
        Unicode(),
        [],
        help="""Variables of the Hub's own environment to pass on. None by default: they would be
        frozen into suspended sessions.""",
    ).tag(config=True)
    ip = Unicode("0.0.0.0", help="""Inside the session's own network.""").tag(config=True)
    port = Integer(8888, help="""Inside the session's own network.""").tag(config=True)

    def make_host(self) -> SessionHost:
        return LocalHost(self.site)

    @property
    def site(self) -> LocalSite:
        """Raises `OSError` and `ValidationError` naming what is wrong with the site file."""
        return site_of(self.site_file, Path(self.site_file).stat().st_mtime)

    @default("cmd")
    def _default_cmd(self) -> list[str]:
        return [f"{self.site.environment_directory}/bin/jupyterhub-singleuser"]

    @default("args")
    def _default_args(self) -> list[str]:
        return list(SINGLEUSER_ARGUMENTS)

    def get_env(self) -> dict[str, str]:
        environment = {**super().get_env(), **self.session_environment}
        return {name: str(value) for name, value in environment.items() if value is not None}


SINGLEUSER_ARGUMENTS = (
    # kernels and server speak over UNIX sockets: nothing of that is lost with a network
    "--KernelManager.transport=ipc",
    "--ServerApp.jpserver_extensions={'spawner.extension': True}",
    # a log-in shell would begin with Debian's PATH, on which the session's own python is not
    "--ServerApp.terminado_settings={'shell_command': ['/bin/bash']}",
    # who is idle is judged outside; these compare clocks, and would end a session that comes back
    "--MappingKernelManager.cull_idle_timeout=0",
    "--TerminalManager.cull_inactive_timeout=0",
    "--ServerApp.shutdown_no_activity_timeout=0",
    # sessions do not look for new versions or news outside (see also `extension_page`)
    "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    "--LabApp.news_url=None",
)
