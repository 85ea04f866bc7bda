"""A host whose sessions are small HTTP servers: each is one process that is its own supervisor and
sandbox, writes a real `status.json`, and obeys files in its folder:

`suspend`, `stop`   as the control socket's commands; `refuse` and `slow` change how a suspend goes
`move`              answer on another port from now on
`orphan`            looks as if its supervisor had died, until it is adopted (leaves `adopted`)
`outlives`          goes on when the Hub of the test dies
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from scheduler_bridge.errors import SchedulerError
from scheduler_bridge.model.phases import Desired, Phase
from scheduler_bridge.model.workload import Grant, Report, SnapshotRef, Workload
from scheduler_bridge.plugin import SchedulerPlugin
from snapshot import proc
from snapshot.model import Process
from spawner.hosting import HostError, Launch, LaunchFailed, NotReachable, Seen
from spawner.local import observe_folder
from spawner.supervisor.status import Outcome, read_status

PROGRAM = Path(__file__).with_name("small_session.py")
FITS_NOWHERE = "fits-nowhere"
"""A server of this name is suspended with demands that no machine of the tests meets."""


class ProcessHost:
    """Moves its sessions at the scheduler itself, as a supervisor would.

    `refuses_suspend` lets every suspend fail with that error; `launch_error` every launch,
    `fork_error` every fork.
    """

    def __init__(self, folder: Path, plugin: SchedulerPlugin) -> None:
        self.folder = folder
        self._plugin = plugin
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._known: dict[str, Process] = {}
        self._grants: dict[str, Grant] = {}
        self.launches: list[Launch] = []
        self.forgotten: list[str] = []
        self.launch_error = ""
        self.fork_error = ""
        self.not_freezable = ""
        self.tasks: set[asyncio.Task[None]] = set()

    def _dir(self, workload_id: str) -> Path:
        return self.folder / workload_id

    def observe(self, workload_id: str) -> Seen:
        process = self._processes.get(workload_id)
        if process is not None:
            process.poll()
        seen = observe_folder(self._dir(workload_id), self._known.get(workload_id))
        if (self._dir(workload_id) / "orphan").exists():
            return Seen(seen.status, False, seen.sandbox_alive)
        return seen

    async def launch(self, launch: Launch) -> Mapping[str, Any]:
        if self.launch_error:
            raise LaunchFailed(self.launch_error)
        self.launches.append(launch)
        directory = self._dir(launch.workload.id)
        (directory / "orphan").unlink(missing_ok=True)
        self._grants[launch.workload.id] = launch.grant
        if launch.mode == "adopt":
            (directory / "adopted").touch()
            return {}
        directory.mkdir(parents=True, exist_ok=True)
        before = self._processes.get(launch.workload.id)
        if before is not None:
            await asyncio.to_thread(before.wait, 5)
        for name in ("suspend", "stop"):
            (directory / name).unlink(missing_ok=True)
        order = {
            "environment": launch.environment,
            "mode": launch.mode,
            "limits": [launch.memory_bytes, launch.cpus],
        }
        (directory / "order.json").write_text(json.dumps(order))
        self._processes[launch.workload.id] = subprocess.Popen(  # noqa: ASYNC220
            [sys.executable, str(PROGRAM), str(directory), launch.workload.id],
            env=os.environ | launch.environment,
            start_new_session=True,
        )
        known = proc.identify(self._processes[launch.workload.id].pid)
        assert known is not None
        self._known[launch.workload.id] = known
        task = asyncio.create_task(self._follow(launch))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return {"supervisor": {"pid": known.pid, "started": known.started}}

    async def _follow(self, launch: Launch) -> None:
        workload_id = launch.workload.id
        move = partial(self._move, workload_id)
        while not (seen := self.observe(workload_id)).is_ready and seen.supervisor_alive:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        if launch.mode == "resume":
            await move(Phase.FILLING)
        await move(Phase.RUNNING)
        await self._beat(workload_id)
        status = read_status(self._dir(workload_id))
        if status is not None and status.outcome is Outcome.SUSPENDED:
            await move(Phase.SUSPENDING)
            shot = SnapshotRef("manifest-1", launch.grant.lease.epoch, 1, 1000, 500)
            if launch.workload.spec.server == FITS_NOWHERE:
                shot = replace(shot, constraints={"gpu_driver": "580.65.06"})
            await move(Phase.SUSPENDED, shot)
        else:
            await move(Phase.STOPPED)

    async def _move(
        self, workload_id: str, phase: Phase, snapshot: SnapshotRef | None = None
    ) -> None:
        grant = self._grants[workload_id]
        try:
            await self._plugin.move(
                grant.lease.id, grant.credential, phase, cause="test", snapshot=snapshot
            )
        except SchedulerError as problem:
            print(f"move to {phase}: {problem}", file=sys.stderr)

    async def _beat(self, workload_id: str) -> None:
        """Heartbeats, and what they say is wanted."""
        while (seen := self.observe(workload_id)).is_live:
            if (self._dir(workload_id) / "refused").exists():
                (self._dir(workload_id) / "refused").unlink()
                await self._move(workload_id, Phase.SUSPENDING)
                await self._move(workload_id, Phase.RUNNING)
            grant = self._grants[workload_id]
            phase = Phase(seen.status.phase if seen.status else "running")
            told = {"freezable": True, "suspend_bytes": 3e6, "suspend_seconds": 2.0}
            report = Report(grant.lease.epoch, phase, signals=told)
            try:
                answer = await self._plugin.heartbeat(
                    grant.lease.id, grant.credential, report, wait=0.0
                )
            except SchedulerError:
                answer = None
            wanted = {Desired.SUSPENDED: "suspend", Desired.STOPPED: "stop"}
            name = wanted.get(answer.desired) if answer else None
            if name is not None and not (self._dir(workload_id) / name).exists():
                (self._dir(workload_id) / name).write_text("desired")
            await asyncio.sleep(0.05)

    async def ask(self, workload_id: str, command: str, *, actor: str, reason: str) -> None:
        if not self.observe(workload_id).supervisor_alive:
            raise NotReachable("Nobody is there.")
        (self._dir(workload_id) / command).write_text(reason)

    async def wait_news(self, workload_id: str, seen: Seen) -> None:
        await asyncio.sleep(0.02)

    async def wait_end(self, workload_id: str) -> None:
        while self.observe(workload_id).supervisor_alive:  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    def remembered_token(self, workload_id: str) -> str:
        try:
            order = json.loads((self._dir(workload_id) / "order.json").read_text())
        except FileNotFoundError:
            return ""
        return str(order["environment"].get("JUPYTERHUB_API_TOKEN", ""))

    def why_not_freezable(self, workload_id: str) -> str:
        return self.not_freezable

    async def fork(self, workload: Workload, new_id: str) -> SnapshotRef:
        if self.fork_error:
            raise HostError(self.fork_error)
        self._dir(new_id).mkdir(parents=True)
        return SnapshotRef(f"copy-for-{new_id}", 0, 0, 1000, 10)

    async def forget(self, workload: Workload) -> None:
        self.forgotten.append(workload.id)

    def end_all(self) -> None:
        """For the end of a test."""
        for process in self._processes.values():
            process.kill()
            process.wait(timeout=5)
