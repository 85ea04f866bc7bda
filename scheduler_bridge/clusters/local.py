"""This machine: supervisors are started by a program that the configuration names."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from scheduler_bridge.clusters import processes
from scheduler_bridge.clusters.base import Handle, LastWords, LaunchFailed, Life
from scheduler_bridge.clusters.emptiness import is_without_sandbox
from scheduler_bridge.model.phases import Kind, Phase
from scheduler_bridge.model.workload import Grant, SnapshotRef, Workload

LAUNCH_SECONDS: Final = 60.0
_PERMANENT_EXIT: Final = 2
_TOLD_AT_MOST: Final = 2000
_STATUS_FILE: Final = "status.json"
_SNAPSHOT_KEY: Final = re.compile(r".*/(\d+)-(\d+)")
_PARTS: Final = ("supervisor", "sandbox")


@dataclass(frozen=True, slots=True)
class LocalSettings:
    """`job_command` is an argument vector in which `{python}` and `{request}` are replaced.
    Requests hold credentials: `request_folder` is private. `run_folder` has one folder per
    supervisor, with its `status.json`; empty: last words are not looked for. `node` is this machine's
    name in the fleet."""

    job_command: tuple[str, ...] = ()
    request_folder: str = ""
    run_folder: str = ""
    python: str = sys.executable
    node: str = ""


class LocalCluster:
    """Implements `clusters.base.ClusterManager`."""

    def __init__(self, settings: LocalSettings) -> None:
        self._settings = settings

    def answering(self) -> Collection[str]:
        return (self._settings.node,) if self._settings.node else ()

    async def launch(self, job: Workload, grant: Grant, *, adopt: bool) -> Handle:
        if not self._settings.job_command:
            raise LaunchFailed("No way to start jobs is configured.", permanent=True)
        request = self._request_file(job.id)
        write_request(request, job, grant, adopt=adopt)
        argv = [
            part.replace("{python}", self._settings.python).replace("{request}", str(request))
            for part in self._settings.job_command
        ]
        handle = await _run(argv)
        if handle and self._settings.run_folder:
            handle = {"directory": str(Path(self._settings.run_folder) / job.id), **handle}
        return handle

    def life(self, handle: Handle) -> Life:
        supervisor, sandbox = (handle.get(part) for part in _PARTS)
        if not isinstance(supervisor, Mapping):
            return Life.UNKNOWN
        if processes.is_alive(supervisor):
            return Life.ALIVE
        if not isinstance(sandbox, Mapping):
            # it may have started one and died before it could say so
            return Life.UNKNOWN if self._sandbox_on_disk(handle) is None else self._judge(handle)
        return Life.ORPHANED if processes.is_alive(sandbox) else Life.GONE

    def is_gone(self, handle: Handle) -> bool:
        return self.life(handle) is Life.GONE

    def has_no_sandbox(self, handle: Handle) -> bool:
        supervisor, folder = handle.get("supervisor"), handle.get("directory")
        if not isinstance(supervisor, Mapping) or not isinstance(folder, str) or not folder:
            return False
        return not processes.is_alive(supervisor) and is_without_sandbox(Path(folder))

    def _judge(self, handle: Handle) -> Life:
        sandbox = self._sandbox_on_disk(handle)
        return Life.ORPHANED if sandbox and processes.is_alive(sandbox) else Life.GONE

    def _sandbox_on_disk(self, handle: Handle) -> Mapping[str, Any] | None:
        status = self._status(handle.get("directory"))
        sandbox = status.get("sandbox")
        return sandbox if _same(status, handle) and isinstance(sandbox, Mapping) else None

    def last_words(self, workload: Workload, handle: Handle) -> LastWords | None:
        folder = handle.get("directory")
        if not folder and self._settings.run_folder:
            folder = str(Path(self._settings.run_folder) / workload.id)
        status = self._status(folder)
        if not _same(status, handle):
            return None
        return read_last_words(status, workload.spec.kind)

    def _status(self, folder: object) -> Mapping[str, Any]:
        if not isinstance(folder, str) or not folder:
            return {}
        try:
            status = json.loads((Path(folder) / _STATUS_FILE).read_bytes())
        except (OSError, ValueError):
            return {}
        return status if isinstance(status, dict) else {}

    def terminate(self, handle: Handle) -> None:
        # the sandbox first: a supervisor that lives sees it end, and cleans up
        for part in reversed(_PARTS):
            process = handle.get(part)
            if isinstance(process, Mapping):
                processes.kill(process)

    def forget(self, workload_id: str) -> None:
        if self._settings.request_folder:
            self._request_file(workload_id).unlink(missing_ok=True)

    def _request_file(self, workload_id: str) -> Path:
        return Path(self._settings.request_folder) / f"{workload_id}.json"


def write_request(path: Path, job: Workload, grant: Grant, *, adopt: bool) -> None:
    """What the launching program reads (mode 0600: it holds the lease's credential)."""
    request = {
        "workload_id": job.id,
        "spec": asdict(job.spec),
        "lease": asdict(grant.lease),
        "credential": grant.credential,
        "attempt": job.attempt,
        "adopt": adopt,
    }
    temporary = path.with_name(path.name + ".new")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as handle:
        json.dump(request, handle)
    temporary.replace(path)


async def _run(argv: Sequence[str]) -> Handle:
    """Run the launching program to its end. It leaves the supervisor running on its own."""
    try:
        program = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            umask=0o022,  # ours is stricter; what a supervisor makes, its user has to read
        )
    except OSError as error:
        raise LaunchFailed(f"{argv[0]} cannot be started: {error}", permanent=False) from error
    try:
        async with asyncio.timeout(LAUNCH_SECONDS):
            told, complaint = await program.communicate()
    except TimeoutError as error:
        raise LaunchFailed(
            f"{argv[0]} did not finish within {LAUNCH_SECONDS:g} s.", permanent=False
        ) from error
    finally:
        if program.returncode is None:
            program.kill()
            await program.wait()
    if program.returncode != 0:
        text = complaint.decode(errors="replace").strip()[-_TOLD_AT_MOST:]
        raise LaunchFailed(
            text or f"The launching program ended with {program.returncode}.",
            permanent=program.returncode == _PERMANENT_EXIT,
        )
    return _handle_told(told)


def _handle_told(told: bytes) -> Handle:
    """The supervisor's process, if the program printed it as JSON."""
    try:
        process = json.loads(told.strip().rpartition(b"\n")[2])
        return {"supervisor": {"pid": int(process["pid"]), "started": int(process["started"])}}
    except (ValueError, KeyError, TypeError):
        return {}


def _same(status: Mapping[str, Any], handle: Handle) -> bool:
    """Whether the status was written by the supervisor of the handle, not by an earlier one."""
    return bool(status) and status.get("supervisor") == handle.get("supervisor")


def read_last_words(status: Mapping[str, Any], kind: Kind) -> LastWords | None:
    """The end that a `status.json` tells of. While its supervisor was telling us it, the outcome
    was noted as `facts.ending` only."""
    facts = status.get("facts")
    ending = status.get("outcome") or (facts.get("ending") if isinstance(facts, dict) else None)
    exit_code = status.get("exit_code")
    phase = _phase_of(ending, kind, exit_code)
    if phase is None:
        return None
    snapshot = _snapshot_of(status) if phase is Phase.SUSPENDED else None
    if phase is Phase.SUSPENDED and snapshot is None:
        return None
    return LastWords(
        phase,
        f"its supervisor had written down that it {ending}",
        snapshot,
        exit_code if isinstance(exit_code, int) else None,
        str(status.get("error") or ""),
        str(status.get("remedy") or ""),
    )


def _phase_of(ending: object, kind: Kind, exit_code: object) -> Phase | None:
    if kind is Kind.SESSION:
        return {
            "suspended": Phase.SUSPENDED,
            "exited": Phase.STOPPED,
            "stopped": Phase.STOPPED,
        }.get(str(ending))
    if ending == "exited":
        return Phase.SUCCEEDED if exit_code == 0 else Phase.FAILED
    return {
        "stopped": Phase.CANCELLED,
        "preempted": Phase.QUEUED,
        "failed": Phase.FAILED,
    }.get(str(ending))


def _snapshot_of(status: Mapping[str, Any]) -> SnapshotRef | None:
    key = str(status.get("snapshot") or "")
    match = _SNAPSHOT_KEY.fullmatch(key)
    if match is None:
        return None
    demands = status.get("snapshot_constraints")
    return SnapshotRef(
        key,
        int(match[1]),
        int(match[2]),
        bytes=int(status.get("snapshot_bytes") or 0),
        constraints=dict(demands) if isinstance(demands, Mapping) else {},
    )
