"""What one process holds open, read from /proc/PID/fd."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass

from snapshot import proc
from snapshot.inspection.connections import InetSocket
from snapshot.inspection.facts import Held, Inode, Kind, Peer
from snapshot.inspection.mounts import Mounts, Ways, inode
from snapshot.inspection.unix_sockets import UnixSocket

DELETED = " (deleted)"
MEMORY_FILES = ("/memfd:", "/dev/zero (deleted)", "/SYSV", "/anon_hugepage", "/[aio]", "/secretmem")
"""Files of the kernel's own, without a place on any disk."""

_SOCKET = re.compile(r"socket:\[(\d+)\]")
_MOUNT = re.compile(rb"^mnt_id:\s*(\d+)$", re.MULTILINE)
_MOUNT_BYTES = 256
"""The mount is among the first lines of /proc/PID/fdinfo/N."""
_PID = re.compile(r"^Pid:\s*(-?\d+)$", re.MULTILINE)
_WATCHED = re.compile(r"^inotify .*\bsdev:([0-9a-f]+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a tree's descriptors are looked at against. Namespaces are named as /proc names them;
    `pids` are the tree's, as this machine counts; `unix` is None if the kernel did not tell;
    `called` are the UNIX sockets that wait to be accepted."""

    mounts: Mounts
    ways: Ways
    namespaces: frozenset[str]
    pids: frozenset[int]
    unix: dict[int, UnixSocket] | None
    called: frozenset[int]
    inet: dict[int, InetSocket]


def held_by(pid: int, around: Surroundings) -> Iterator[Held]:
    """Everything a process has open and where it stands. What vanishes meanwhile is left out."""
    try:
        folder = os.open(f"/proc/{pid}/fd", os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return
    try:
        for name in os.listdir(folder):
            try:
                link = os.stat(name, dir_fd=folder, follow_symlinks=False)
                target = os.readlink(name, dir_fd=folder)
                yield _held(pid, name, target, link.st_mode, folder, around)
            except OSError:
                continue
    finally:
        os.close(folder)
    with_folder = f"/proc/{pid}/cwd"
    try:
        yield on_disk(os.readlink(with_folder), inode(os.stat(with_folder)), around, reads=True)
    except OSError:
        return


def _held(pid: int, name: str, target: str, mode: int, folder: int, around: Surroundings) -> Held:
    if number := _SOCKET.fullmatch(target):
        return _socket(pid, name, int(number[1]), around)
    if target.startswith("anon_inode:"):
        return _handle(pid, name, target, around)
    if not target.startswith("/"):
        return _nameless(target, around)
    found = inode(os.stat(name, dir_fd=folder))
    reads, writes = bool(mode & stat.S_IRUSR), bool(mode & stat.S_IWUSR)
    if target.startswith(MEMORY_FILES):
        return Held(Kind.OTHER, target, reads=reads, writes=writes, inode=found)
    where = _MOUNT.search(_beginning(f"/proc/{pid}/fdinfo/{name}"))
    is_outside = where is not None and int(where[1]) not in around.mounts.numbers
    return on_disk(target, found, around, reads=reads, writes=writes, is_outside=is_outside)


def _beginning(path: str) -> bytes:
    """Of a file of /proc. Reading one for each descriptor as text took a third of an inspection."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, _MOUNT_BYTES)
    finally:
        os.close(descriptor)


def _nameless(target: str, around: Surroundings) -> Held:
    """A pipe, or a namespace (`net:[…]`)."""
    kind, _, number = target.partition(":")
    if kind == "pipe" or not number.startswith("["):
        return Held(Kind.OTHER, target)
    return Held(Kind.NAMESPACE, kind, is_outside=target not in around.namespaces)


def on_disk(
    target: str,
    found: Inode,
    around: Surroundings,
    *,
    reads: bool,
    writes: bool = False,
    is_mapped: bool = False,
    is_outside: bool = False,
) -> Held:
    """A file, folder or device with a place in the file system. O_PATH neither reads nor writes."""
    path = target.removesuffix(DELETED)
    kind = _kind(found.mode)
    closed, parent = "", False
    if kind in (Kind.FILE, Kind.FOLDER) and not is_outside and (reads or writes):
        closed = around.ways.closed_folder(path)
        parent = not found.links and around.ways.closed_parent(path)
    return Held(
        kind,
        path,
        reads=reads,
        writes=writes,
        is_mapped=is_mapped,
        inode=found,
        closed_folder=closed,
        closed_parent=parent,
        is_outside=is_outside,
    )


def _kind(mode: int) -> Kind:
    if stat.S_ISREG(mode):
        return Kind.FILE
    if stat.S_ISDIR(mode):
        return Kind.FOLDER
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        return Kind.DEVICE
    return Kind.OTHER


def _handle(pid: int, name: str, target: str, around: Surroundings) -> Held:
    if "pidfd" in target:
        about = _PID.search(proc.read_text(f"/proc/{pid}/fdinfo/{name}"))
        watched = int(about[1]) if about else -1
        return Held(Kind.HANDLE, target, is_outside=watched >= 0 and watched not in around.pids)
    if "inotify" in target:
        found = _WATCHED.findall(proc.read_text(f"/proc/{pid}/fdinfo/{name}"))
        kinds = (around.mounts.kinds.get(int(number, 16), "") for number in found)
        return Held(Kind.HANDLE, target, watches=frozenset(kinds))
    return Held(Kind.HANDLE, target)


def _socket(pid: int, name: str, number: int, around: Surroundings) -> Held:
    if inet := around.inet.get(number):
        return Held(Kind.SOCKET, inet.protocol.upper(), socket=number, waiting=inet.queued)
    if unix := (around.unix or {}).get(number):
        return Held(Kind.SOCKET, "UNIX", socket=number, peer=_peer(unix, around))
    raw = os.getxattr(f"/proc/{pid}/fd/{name}", "system.sockprotoname")
    protocol = raw.rstrip(b"\0").decode("ascii", "replace")
    is_foreign = protocol.startswith("UNIX") and around.unix is not None
    return Held(Kind.SOCKET, protocol, peer=Peer.OUTSIDE if is_foreign else Peer.NONE)


def _peer(found: UnixSocket, around: Surroundings) -> Peer:
    if found.peer is None or (not found.peer and (found.is_datagram or found.is_over)):
        return Peer.NONE
    if found.peer:
        return Peer.INSIDE if found.peer in (around.unix or {}) else Peer.OUTSIDE
    if found.inode not in around.called:
        return Peer.OUTSIDE
    return Peer.WAITING if found.unread else Peer.INSIDE
