"""Starting, watching and ending a sandbox; the proof that it is empty.

A sandbox is named by the first process of its PID namespace. Records that a later supervisor needs
lie in the sandbox's own folder, which only root can write to.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import stat
from dataclasses import asdict
from pathlib import Path

from pydantic import TypeAdapter

from snapshot import layer_base, plan, proc, programs, skeleton
from snapshot.filling import marker
from snapshot.half_built import half_built
from snapshot.model import Process, SandboxSpec, Tools

LAUNCH_SECONDS = 20.0
END_SECONDS = 20.0
HALT_PASSES = 50
MOUNTS_FILE = "mounts.json"

_MOUNTS = TypeAdapter(tuple[plan.Mount, ...])


class SandboxError(Exception):
    """A sandbox could not be built, started or ended. The message says what is wrong."""


async def start(spec: SandboxSpec, tools: Tools) -> Process:
    """Build the sandbox and start `spec.argv` in it. Returns the first process of its tree.

    Nothing is left running on failure. Raises `SandboxError`.
    """
    try:
        host = skeleton.look_at_host(spec)
        mounts = plan.mounts(spec, host)
        await asyncio.to_thread(skeleton.build, spec, host, mounts)
        skeleton.install_init(spec, tools.init)
        _forget_exit(spec)
        marker.clear(spec.directory)
        record_mounts(spec, mounts)
        await asyncio.to_thread(layer_base.begin, spec, mounts)
    except (OSError, ValueError, layer_base.LayerError) as error:
        raise SandboxError(f"The sandbox could not be built: {error}") from error
    order = plan.launch_order(spec, host, mounts, plan.command(spec, tools.init))
    pid = await _launch(order)
    return proc.identify(pid) or Process(pid, 0)


async def _launch(order: plan.LaunchOrder) -> int:
    try:
        finished = await programs.run(
            programs.launcher("start"),
            seconds=LAUNCH_SECONDS,
            text=json.dumps(asdict(order), default=str),
        )
    except (TimeoutError, OSError) as error:
        raise SandboxError(f"The sandbox was not started: {error or 'no answer'}") from error
    if finished.status != 0:
        reason = finished.errors.strip().splitlines()[-1:] or ["no reason given"]
        raise SandboxError(f"The sandbox was not started: {reason[0]}")
    return int(finished.output)


def record_mounts(spec: SandboxSpec, mounts: tuple[plan.Mount, ...]) -> None:
    """Remember the mounts of the running tree: a dump must name exactly these."""
    path = Path(spec.directory, MOUNTS_FILE)
    temporary = path.with_suffix(".new")
    temporary.write_bytes(_MOUNTS.dump_json(mounts))
    temporary.replace(path)


def recorded_mounts(spec: SandboxSpec) -> tuple[plan.Mount, ...]:
    """The mounts of the running tree. Raises `SandboxError` if there is no record."""
    try:
        return _MOUNTS.validate_json(Path(spec.directory, MOUNTS_FILE).read_bytes())
    except (OSError, ValueError) as error:
        raise SandboxError(f"The record of the sandbox's mounts is unreadable: {error}") from error


def is_alive(process: Process) -> bool:
    """True while the tree's first process exists and has not ended."""
    return not proc.has_ended(process)


def is_empty(process: Process) -> bool:
    """Proof that no process of this sandbox is left (see `proc.has_ended`)."""
    return proc.has_ended(process)


async def terminate(process: Process, grace_seconds: float) -> bool:
    """End the tree: SIGTERM to the program, after the grace SIGKILL to everything.

    Returns once the sandbox is empty; True if the program ended within its grace. May be called
    on a sandbox that is empty already. Raises `SandboxError` if the kernel does not end it.
    """
    if grace_seconds > 0:
        programs.send_signal(_program(process), signal.SIGTERM)
        if await programs.wait_until_ended(process, grace_seconds):
            return True
    programs.send_signal(process, signal.SIGKILL)
    if not await programs.wait_until_ended(process, END_SECONDS):
        raise SandboxError(
            f"The processes of sandbox {process.pid} did not end within {END_SECONDS:.0f} s of being"
            " killed; one of them waits for a disk or a device."
        )
    return False


async def clear(spec: SandboxSpec) -> int:
    """End what is left of a sandbox whose supervisor was killed before it could write down that there
    is one. Only for who has the sandbox to himself. Returns how many processes there were. Raises
    `SandboxError` if they do not end."""
    found = await asyncio.to_thread(half_built, spec.directory)
    for process in found:
        programs.send_signal(process, signal.SIGKILL)
    for process in found:
        if not await programs.wait_until_ended(process, END_SECONDS):
            raise SandboxError(f"Process {process.pid} of an earlier sandbox does not end.")
    return len(found)


def _program(first: Process) -> Process:
    """The program itself, below init and the shell that records its exit (see `plan.command`).

    Signals go to it directly: init would hand them to the shell, which does not pass them on.
    """
    for candidate in (first, *_children(first)):
        if proc.arguments(candidate.pid)[2:4] == plan.command_marks():
            return min(_children(candidate), key=lambda p: (p.started, p.pid), default=candidate)
    return first


def _children(process: Process) -> list[Process]:
    return [found for pid in proc.children(process.pid) if (found := proc.identify(pid))]


def halt(process: Process) -> tuple[Process, ...]:
    """Stop every running process of the tree, for self-fencing. Returns what `go_on` needs.

    Processes that were stopped before are left out. Raises `SandboxError` if the tree creates
    processes faster than they can be stopped.
    """
    halted: dict[Process, None] = {}
    for _ in range(HALT_PASSES):
        running = [p for p in proc.members(process) if p not in halted and not _is_stopped(p)]
        if not running:
            return tuple(halted)
        for member in running:
            programs.send_signal(member, signal.SIGSTOP)
            halted[member] = None
    raise SandboxError("The sandbox creates processes faster than they can be stopped.")


def go_on(halted: tuple[Process, ...]) -> None:
    """Continue exactly the processes that `halt` stopped, the tree's first process last."""
    for member in reversed(halted):
        programs.send_signal(member, signal.SIGCONT)


def _is_stopped(process: Process) -> bool:
    found = proc.stat(process.pid)
    return found is None or found.state in {"T", "t", "Z", "X"}


def exit_code(spec: SandboxSpec) -> int | None:
    """The program's exit status as a shell tells it (128 + N for signal N), None if unknown.

    Known also when no supervisor was there as it ended. The file belongs to the user, who can
    forge the own exit status and nothing else.
    """
    try:
        descriptor = os.open(_exit_file(spec), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        return int(os.read(descriptor, 16))
    except ValueError:
        return None
    finally:
        os.close(descriptor)


def _exit_file(spec: SandboxSpec) -> Path:
    return Path(spec.directory, "run", plan.EXIT_FILE)


def _forget_exit(spec: SandboxSpec) -> None:
    with contextlib.suppress(FileNotFoundError):
        _exit_file(spec).unlink()


def put_inside(spec: SandboxSpec, name: str, content: bytes) -> None:
    """Give the sandbox a file in its /run/hubernate, owned by the user, mode 0600, atomically.

    The folder is the user's: links laid there in advance are never followed.
    """
    folder = os.open(Path(spec.directory, "run"), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    temporary = f".{name}.{os.getpid()}.new"
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=folder)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with os.fdopen(os.open(temporary, flags, 0o600, dir_fd=folder), "wb") as handle:
            handle.write(content)
            os.fchown(handle.fileno(), spec.identity.uid, spec.identity.gid)
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        os.close(folder)
