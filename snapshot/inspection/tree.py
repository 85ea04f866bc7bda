"""Reads a whole tree from /proc, without stopping anything."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from itertools import chain, islice

from snapshot import proc
from snapshot.inspection import connections, mounts
from snapshot.inspection.descriptors import Surroundings, held_by
from snapshot.inspection.facts import IdMaps, ProcessFacts, TreeFacts
from snapshot.inspection.mappings import Mapped
from snapshot.inspection.unix_sockets import UnixSocket, unix_sockets
from snapshot.model import Process

_log = logging.getLogger(__name__)

CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_PTRACE": 19, "CAP_SYS_ADMIN": 21}
"""Without one of these neither we nor CRIU can look into a tree of another account."""

MOST_HELD = 200_000
"""Of descriptors and mapped files of a tree: they are all in our memory at once, and a few programs
inside can have a million each."""

_OF_SESSION = {"user": "user", "pid": "pid_for_children", "time": "time_for_children"}


def members(first: Process) -> tuple[Process, ...]:
    """Every process of the sandbox, also in PID namespaces made inside it; empty once it ended."""
    found = dict.fromkeys(proc.members(first))
    pending = list(found)
    while pending:
        for pid in proc.children(pending.pop().pid):
            process = proc.identify(pid)
            if process is not None and process not in found:
                found[process] = None
                pending.append(process)
    return tuple(found)


def read(first: Process) -> TreeFacts | None:
    """What /proc and the socket tables tell now; None once the tree has ended."""
    processes = members(first)
    if not processes:
        return None
    inet = connections.read(first.pid)
    around = _surroundings(first, processes, inet)
    mapped = Mapped(around)
    found = tuple(_up_to(MOST_HELD, (_process(each.pid, around, mapped) for each in processes)))
    private, shared = _memory(first, processes)
    sockets = frozenset(held.socket for process in found for held in process.held)
    return TreeFacts(
        found,
        around.ways.ids,
        private_bytes=private,
        shared_bytes=shared,
        outside=connections.leading_out(inet, sockets),
        is_cut=sum(len(process.held) for process in found) > MOST_HELD,
    )


def _up_to(most: int, processes: Iterable[ProcessFacts]) -> Iterable[ProcessFacts]:
    """Processes until they hold more than `most` together."""
    held = 0
    for process in processes:
        yield process
        held += len(process.held)
        if held > most:
            return


def _surroundings(
    first: Process, processes: Iterable[Process], inet: Iterable[connections.InetSocket]
) -> Surroundings:
    ids = id_maps(
        *(proc.read_text(f"/proc/{first.pid}/{n}") for n in ("uid_map", "gid_map", "status"))
    )
    unix = _unix(first)
    return Surroundings(
        mounts=mounts.read(first.pid),
        ways=mounts.Ways(f"/proc/{first.pid}/root", ids),
        namespaces=_namespaces(first.pid),
        pids=frozenset(process.pid for process in processes),
        unix=unix,
        called=frozenset(caller for found in (unix or {}).values() for caller in found.callers),
        inet={found.inode: found for found in inet if found.inode},
    )


def _unix(first: Process) -> dict[int, UnixSocket] | None:
    try:
        return unix_sockets(first)
    except OSError as error:
        _log.info("the kernel does not tell about UNIX sockets: %s", error)
        return None


def id_maps(users: str, groups: str, status: str) -> IdMaps:
    """Of the texts of /proc/PID/uid_map, gid_map and status of a session's process (pure)."""
    user_rows, group_rows = _id_rows(users), _id_rows(groups)
    words = [line.split() for line in status.splitlines() if line.startswith(("Gid:", "Groups:"))]
    member_of = frozenset(int(word) for line in words for word in line[1:])
    return IdMaps(_ranges(user_rows), _ranges(group_rows), _root(user_rows), member_of)


def _id_rows(text: str) -> list[tuple[int, int, int]]:
    rows = (line.split() for line in text.splitlines())
    return [(int(row[0]), int(row[1]), int(row[2])) for row in rows if len(row) == 3]


def _ranges(rows: list[tuple[int, int, int]]) -> tuple[range, ...]:
    return tuple(range(outer, outer + count) for _, outer, count in rows)


def _root(rows: list[tuple[int, int, int]]) -> int:
    """The host id that the session's root is, -1 if it has none."""
    return next((outer - inner for inner, outer, _ in rows if inner == 0), -1)


def missing_capabilities(status: str) -> tuple[str, ...]:
    """Which of `CAPABILITIES` are not in effect, of the text of /proc/PID/status (pure)."""
    effective = int(_field(status, "CapEff", "0"), 16)
    return tuple(name for name, bit in CAPABILITIES.items() if not effective >> bit & 1)


def _field(status: str, name: str, otherwise: str) -> str:
    """The last word of a line of /proc/PID/status that has one value, or one for each namespace."""
    for line in status.splitlines():
        if line.startswith(f"{name}:"):
            return (line.split()[1:] or [otherwise])[-1]
    return otherwise


def inner_pid(status: str) -> int:
    """A process's number inside the session, of the text of its /proc/PID/status (pure). Of a
    thread's it is that of its process; 0 if it is gone."""
    for line in status.splitlines():
        if line.startswith("NStgid:"):
            return int(line.split()[-1])
    return 0


def _process(pid: int, around: Surroundings, mapped: Mapped) -> ProcessFacts:
    status = proc.read_text(f"/proc/{pid}/status")
    held = tuple(islice(chain(held_by(pid, around), mapped.by(pid)), MOST_HELD + 1))
    return ProcessFacts(
        pid=inner_pid(status),
        command=proc.command(pid),
        tracer=_tracer(status),
        own_namespaces=frozenset(_own(pid, around.namespaces)),
        held=held,
    )


def _tracer(status: str) -> int:
    """Who traces a process, 0 for nobody, or for ourselves (see `stopping`)."""
    tracer = int(_field(status, "TracerPid", "0"))
    return tracer if tracer and tracer not in proc.threads(os.getpid()) else 0


def _namespaces(pid: int) -> frozenset[str]:
    """Those of a process, as its descriptors would name them."""
    folder = f"/proc/{pid}/ns"
    found = set()
    for name in ("cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts"):
        try:
            found.add(os.readlink(f"{folder}/{name}"))
        except OSError:
            continue
    return frozenset(found)


def _own(pid: int, of_session: frozenset[str]) -> Iterable[str]:
    """Kinds of namespaces in which a process, or its next child, is apart from the session."""
    for kind, name in _OF_SESSION.items():
        try:
            if os.readlink(f"/proc/{pid}/ns/{name}") not in of_session:
                yield kind
        except OSError:
            continue


def _memory(first: Process, processes: Iterable[Process]) -> tuple[int, int]:
    """Bytes of private and of shared memory. The kernel counts what is shared for every process, so
    the largest count, or what lies in /dev/shm, stands for all."""
    private, shared = 0, [_used(f"/proc/{first.pid}/root/dev/shm")]
    for process in processes:
        sizes = dict(
            line.split(":", 1)
            for line in proc.read_text(f"/proc/{process.pid}/status").splitlines()
            if ":" in line
        )
        private += _bytes(sizes, "RssAnon") + _bytes(sizes, "VmSwap")
        shared.append(_bytes(sizes, "RssShmem"))
    return private, max(shared)


def _bytes(sizes: dict[str, str], name: str) -> int:
    words = sizes.get(name, "").split()
    return int(words[0]) * 1024 if words else 0


def _used(folder: str) -> int:
    """What a file system holds, 0 if it cannot be told."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return 0
    return (found.f_blocks - found.f_bfree) * found.f_frsize
