"""TCP and UDP sockets as /proc/PID/net shows them, and which lead out of a tree (pure but `read`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from snapshot import proc

TABLES: Final = ("tcp", "tcp6", "udp", "udp6")
ESTABLISHED, LISTENING, CLOSED = "01", "0A", "07"
ENDED: Final = frozenset({"06", CLOSED, LISTENING})
"""Time-wait, closed (for UDP: not connected) and listening lead nowhere."""

_V4_IN_V6: Final = "0000000000000000FFFF0000"
_LOOPBACK_V6: Final = "00000000000000000000000001000000"
_ANYWHERE: Final = frozenset({"00000000", "0" * 32})


@dataclass(frozen=True, slots=True)
class InetSocket:
    """One row. Addresses are the kernel's hexadecimal ADDRESS:PORT; `inode` is 0 for a connection
    that nobody has accepted. `queued` counts connections waiting at a listening socket."""

    protocol: str
    local: str
    remote: str
    state: str
    queued: int
    inode: int


def read(pid: int) -> tuple[InetSocket, ...]:
    """Every TCP and UDP socket of the process's network namespace."""
    return tuple(
        found
        for name in TABLES
        for found in parse(name.rstrip("6"), proc.read_text(f"/proc/{pid}/net/{name}"))
    )


def parse(protocol: str, table: str) -> Iterable[InetSocket]:
    """The rows of one of the kernel's tables (pure)."""
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) < 10:
            continue
        queued = int(fields[4].partition(":")[2], 16) if fields[3] == LISTENING else 0
        local, remote = _plain(fields[1]), _plain(fields[2])
        yield InetSocket(protocol, local, remote, fields[3], queued, int(fields[9]))


def _plain(address: str) -> str:
    """An IPv4 address within IPv6 as IPv4: both ends of a connection can be of either kind."""
    host, _, port = address.partition(":")
    return f"{host.removeprefix(_V4_IN_V6) if len(host) == 32 else host}:{port}"


def leading_out(sockets: Iterable[InetSocket], own: frozenset[int]) -> int:
    """How many connections of the tree end when its network does (pure).

    `own` are the inodes that the tree holds. A connection stays inside if its other end is held by
    the tree, or waits to be accepted by it; the network helper's ends lie in the same namespace.
    """
    listed = [found for found in sockets if found.state not in ENDED]
    ends = {(found.protocol, found.local, found.remote): found.inode for found in listed}
    count = 0
    for found in listed:
        host = found.remote.partition(":")[0]
        if found.inode in own and host not in _ANYWHERE:
            far = ends.get((found.protocol, found.remote, found.local))
            count += not _is_loopback(host) if far is None else far not in own and far != 0
    return count


def _is_loopback(host: str) -> bool:
    return host == _LOOPBACK_V6 or (len(host) == 8 and host.endswith("7F"))
