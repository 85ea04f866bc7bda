"""Setting a held tree's TCP sockets free again.

CRIU puts each TCP connection into repair mode to read it, and takes it out when it lets the tree go.
If CRIU is killed before, sending on the connection fails with EPERM for ever. So we end repair mode
ourselves as soon as CRIU has read everything: the tree is held, so nobody can tell, and CRIU ending
it once more does no harm.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

from snapshot import linux, proc
from snapshot.model import Process

TCP_REPAIR, TCP_REPAIR_OFF = 19, 0


def end_repair(process: Process) -> int:
    """End repair mode of every TCP connection in the tree; how many connections there were."""
    seen: set[str] = set()
    for member in proc.members(process):
        for descriptor, inode in _sockets(member.pid):
            if inode not in seen and _end_one(member.pid, descriptor):
                seen.add(inode)
    return len(seen)


def _sockets(pid: int) -> Iterator[tuple[int, str]]:
    folder = f"/proc/{pid}/fd"
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):
                target = os.readlink(f"{folder}/{name}")
                if target.startswith("socket:"):
                    yield int(name), target


def _end_one(pid: int, descriptor: int) -> bool:
    """True for a TCP connection. Listening sockets refuse, and are never in repair mode."""
    try:
        copy = socket.socket(fileno=linux.take_descriptor(pid, descriptor))
    except OSError:
        return False
    with copy:
        if copy.family not in (socket.AF_INET, socket.AF_INET6) or copy.type != socket.SOCK_STREAM:
            return False
        try:
            copy.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, TCP_REPAIR_OFF)
        except OSError:
            return False
        return True
