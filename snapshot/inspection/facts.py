"""What an inspection sees of a tree, as values (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What a descriptor, a mapping or a folder in use leads to."""

    FILE = "file"
    FOLDER = "folder"
    DEVICE = "device"
    SOCKET = "socket"
    HANDLE = "handle"
    NAMESPACE = "namespace"
    OTHER = "other"


class Peer(StrEnum):
    """Where the other end of a socket is. `waiting`: it has not been accepted, and there is data."""

    NONE = "none"
    INSIDE = "inside"
    OUTSIDE = "outside"
    WAITING = "waiting"


@dataclass(frozen=True, slots=True)
class Inode:
    """Of stat(2). `owner` and `group` are host ids; `bytes` is what it takes on the disk; `device`
    is (major, minor) of a device file."""

    owner: int
    group: int
    mode: int
    links: int
    bytes: int
    device: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class Held:
    """One thing that a process holds open, maps, or stands in.

    `name` is the kernel's name for it. `closed_folder` is the first folder on its way that a
    restore could not pass, `closed_parent` says that it could not create a file next to it.
    `is_outside` is true for what does not belong to the session: a file on a mount of somebody else,
    another's process or namespace. `socket` (its inode number), `peer` and `waiting` (connections not
    accepted yet) are of sockets, `watches` are the file systems that an inotify handle watches.
    """

    kind: Kind
    name: str
    reads: bool = True
    writes: bool = False
    is_mapped: bool = False
    inode: Inode | None = None
    closed_folder: str = ""
    closed_parent: bool = False
    is_outside: bool = False
    socket: int = 0
    peer: Peer = Peer.NONE
    waiting: int = 0
    watches: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """One process. `pid` is its number inside the session, `tracer` that of its tracer as this
    machine counts (0: none), `own_namespaces` the kinds that it does not share with the session."""

    pid: int
    command: str
    tracer: int = 0
    own_namespaces: frozenset[str] = frozenset()
    held: tuple[Held, ...] = ()


@dataclass(frozen=True, slots=True)
class IdMaps:
    """Which host ids exist inside a session, which user its root is (`root`), and the groups that
    the session is a member of."""

    users: tuple[range, ...]
    groups: tuple[range, ...]
    root: int
    member_of: frozenset[int] = frozenset()

    def knows(self, inode: Inode) -> bool:
        """True if both its owner and its group exist inside: then the session's root rules it."""
        return any(inode.owner in ids for ids in self.users) and any(
            inode.group in ids for ids in self.groups
        )

    def lets(self, inode: Inode, wanted: int) -> bool:
        """Whether a restore, as the session's root with the session's groups, gets `wanted` (4 read,
        2 write, 1 pass) of an inode."""
        if self.knows(inode):
            return True
        shift = 6 if inode.owner == self.root else 3 if inode.group in self.member_of else 0
        return inode.mode >> shift & wanted == wanted


@dataclass(frozen=True, slots=True)
class TreeFacts:
    """A whole tree. `private_bytes` is memory of single processes, `shared_bytes` what they share (an
    upper bound); `outside` counts connections that lead out of the tree; `is_cut`: it holds more than
    was looked at."""

    processes: tuple[ProcessFacts, ...]
    ids: IdMaps
    private_bytes: int = 0
    shared_bytes: int = 0
    outside: int = 0
    is_cut: bool = False
