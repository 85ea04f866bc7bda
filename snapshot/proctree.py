"""Can this tree be frozen, and if not, why? Looks only at /proc; no program notices.

What is named here would make CRIU refuse the tree after it has been stopped; finding it before
costs the user nothing and can be said in plain words. What is not found here, CRIU still refuses.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from snapshot import proc
from snapshot.gpu import devices
from snapshot.model import Blocker, Process

_HANDLES = {
    "anon_inode:[io_uring]": "io_uring (fast disk access)",
    "anon_inode:[userfaultfd]": "a memory fault handler",
    "anon_inode:[perf_event]": "a performance counter",
    "anon_inode:kvm-vm": "a virtual machine",
    "anon_inode:bpf-prog": "a kernel filter program",
}
_SAVABLE_DEVICES = frozenset({"null", "zero", "full", "random", "urandom", "tty", "ptmx"})


def inspect(process: Process, *, gpu_saved: bool | None = None) -> tuple[Blocker, ...]:
    """Everything found that keeps the tree of this first process from being frozen.

    `gpu_saved`: NVIDIA devices are looked after by somebody else; None: if the driver here can.
    """
    saved = devices.driver_saves_memory() if gpu_saved is None else gpu_saved
    members = proc.members(process)
    if not members:
        return (Blocker(process.pid, "session", "its processes have ended"),)
    return tuple(blocker for member in members for blocker in _blockers(member.pid, saved))


def _blockers(pid: int, gpu_saved: bool) -> Iterator[Blocker]:
    name = proc.command(pid)
    if tracer := _traced_by(pid):
        what = f"it is being traced by process {tracer}"
        yield Blocker(pid, name, what, "End the debugger or tracer first.")
    for what in sorted(set(_unsavable_handles(pid, gpu_saved))):
        yield Blocker(pid, name, f"it holds {what}", "Close it, or end this program.")
    if device := _mapped_device(pid, gpu_saved):
        what = f"it uses memory of the device {device}"
        yield Blocker(pid, name, what, "End this program or let it release the device.")


def _traced_by(pid: int) -> int:
    for line in proc.read_text(f"/proc/{pid}/status").splitlines():
        if line.startswith("TracerPid:"):
            return int(line.split()[1])
    return 0


def _unsavable_handles(pid: int, gpu_saved: bool) -> Iterator[str]:
    for target in _descriptors(pid):
        if target in _HANDLES:
            yield _HANDLES[target]
        elif target.startswith("/dev/") and _is_foreign_device(target, gpu_saved):
            yield f"the device {target}"


def _is_foreign_device(path: str, gpu_saved: bool) -> bool:
    if gpu_saved and devices.is_drivers(path):
        return False
    name = path.removeprefix("/dev/").removesuffix(" (deleted)")
    return name not in _SAVABLE_DEVICES and not name.startswith(("pts/", "shm/"))


def _descriptors(pid: int) -> Iterator[str]:
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        try:
            yield os.readlink(f"{folder}/{name}")
        except OSError:
            continue


def _mapped_device(pid: int, gpu_saved: bool) -> str:
    """The first mapping of device memory, which cannot be read back."""
    for line in proc.read_text(f"/proc/{pid}/maps").splitlines():
        path = line[73:] if len(line) > 73 else ""
        if path.startswith("/dev/") and _is_foreign_device(path, gpu_saved):
            return path
    return ""
