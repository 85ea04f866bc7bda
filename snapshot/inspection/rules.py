"""What keeps a tree from being saved or brought back: one table of rules, each tried with CRIU (pure).

A rule is about one thing that a process holds, or about one process. What no rule names, CRIU may
still refuse; what a rule names, it refuses for certain (tests/snapshot/test_blockers.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from snapshot.inspection import words
from snapshot.inspection.facts import Held, IdMaps, Kind, Peer, ProcessFacts, TreeFacts
from snapshot.model import Blocker
from snapshot.printable import printable

MOST_BLOCKERS = 20
"""So many are told; more would be read by nobody."""

READ, WRITE = 4, 2


@dataclass(frozen=True, slots=True)
class Setting:
    """What rules depend on besides the thing itself. `ghost_bytes`: larger deleted files are not
    saved. `gpu_saved`: NVIDIA devices are looked after by somebody else."""

    ids: IdMaps
    ghost_bytes: int
    gpu_saved: bool


@dataclass(frozen=True, slots=True)
class Rule:
    """`what` and `remedy` are told where `holds`; `{}` stands for what `called` says."""

    name: str
    kinds: frozenset[Kind]
    holds: Callable[[Held, Setting], bool]
    what: str
    remedy: str = words.END_IT
    called: Callable[[Held], str] = lambda held: held.name


_FILES = frozenset({Kind.FILE, Kind.FOLDER})


def _is_foreign_device(held: Held, setting: Setting) -> bool:
    if held.inode is None or (setting.gpu_saved and held.name.startswith("/dev/nvidia")):
        return False
    number = held.inode.device
    return (
        number not in words.SAVED_DEVICES
        and number != words.OWN_TERMINAL
        and number[0] not in words.TERMINALS
    )


def _is_own_terminal(held: Held, setting: Setting) -> bool:
    return held.inode is not None and held.inode.device == words.OWN_TERMINAL


def _is_deleted(held: Held, setting: Setting) -> bool:
    return held.kind is Kind.FILE and held.inode is not None and held.inode.links == 0


def _is_huge(held: Held, setting: Setting) -> bool:
    found = held.inode
    return _is_deleted(held, setting) and found is not None and found.bytes > setting.ghost_bytes


def _is_deleted_of_others(held: Held, setting: Setting) -> bool:
    return (
        _is_deleted(held, setting) and held.inode is not None and not setting.ids.knows(held.inode)
    )


def _is_deleted_elsewhere(held: Held, setting: Setting) -> bool:
    """Its content would come back next to where it was, where nothing can be created."""
    return _is_deleted(held, setting) and (held.closed_parent or bool(held.closed_folder))


def _is_out_of_reach(held: Held, setting: Setting) -> bool:
    if held.inode is None or not held.inode.links or not (held.reads or held.writes):
        return False
    wanted = READ * held.reads | WRITE * held.writes
    return not setting.ids.lets(held.inode, wanted)


def _is_unsaved_handle(held: Held, setting: Setting) -> bool:
    return words.handle_of(held.name) not in words.SAVED_HANDLES


def _handle(held: Held) -> str:
    name = words.handle_of(held.name)
    return words.HANDLES.get(name, f"something of the kernel that cannot be saved ({name})")


def _of(*kinds: Kind) -> frozenset[Kind]:
    return frozenset(kinds)


RULES = (
    Rule(
        "io_uring",
        _of(Kind.HANDLE),
        lambda held, _: words.handle_of(held.name) == "io_uring",
        "it uses {}",
        "Start it with io_uring turned off (for Node and uvloop: UV_USE_IO_URING=0).",
        _handle,
    ),
    Rule(
        "profiler",
        _of(Kind.HANDLE),
        lambda held, _: words.handle_of(held.name) == "perf_event",
        "it uses {}",
        "End the profiler.",
        _handle,
    ),
    Rule("handle", _of(Kind.HANDLE), _is_unsaved_handle, "it uses {}", called=_handle),
    Rule(
        "device",
        _of(Kind.DEVICE),
        _is_foreign_device,
        "it uses {}",
        "End this program, or let it release the device.",
        lambda held: words.device_words(held.name),
    ),
    Rule(
        "own terminal",
        _of(Kind.DEVICE),
        _is_own_terminal,
        "it reads keys past its terminal ({}), as menus and password prompts do",
        "Leave the prompt, menu or pager in that terminal.",
    ),
    Rule(
        "secret memory",
        _of(Kind.OTHER),
        lambda held, _: held.name.startswith("/secretmem"),
        "it keeps secrets in memory that nobody else can read",
    ),
    Rule(
        "not of the session",
        _FILES | _of(Kind.DEVICE, Kind.OTHER),
        lambda held, _: held.is_outside,
        "it holds {}, which does not belong to the session",
    ),
    Rule(
        "huge deleted file",
        _of(Kind.FILE),
        _is_huge,
        "its file {} was deleted, but is still open and larger than {gib} GiB",
        "Let the program close it, or keep such files under a name.",
    ),
    Rule(
        "deleted file of others",
        _of(Kind.FILE),
        _is_deleted_of_others,
        "it uses {}, a file of another account that was deleted or replaced meanwhile",
        "Restart this program (in a notebook: restart the kernel); it then uses the new one.",
    ),
    Rule(
        "deleted file out of reach",
        _of(Kind.FILE),
        _is_deleted_elsewhere,
        "its deleted file {} lies in a folder that is closed to other accounts",
        "Let the program close it.",
    ),
    Rule(
        "file of others",
        _of(Kind.FILE),
        _is_out_of_reach,
        "it has {} open, which belongs to another account or group and is closed to others",
        "Close the file, or let its owner open it to everybody (chmod o+r, and o+w if it is written).",
    ),
    Rule(
        "folder of others",
        _of(Kind.FOLDER),
        _is_out_of_reach,
        "it uses the folder {}, which belongs to another account or group and is closed to others",
        "Leave the folder, or let its owner open it to everybody (chmod o+rx).",
    ),
    Rule(
        "closed folder",
        _FILES,
        lambda held, _: (
            bool(held.closed_folder) and held.inode is not None and held.inode.links > 0
        ),
        "it uses {}",
        "Close what lies in there, or let the folder's owner open it to everybody (chmod o+x).",
        lambda held: f"{held.name}, in {held.closed_folder}, which is closed to other accounts",
    ),
    Rule(
        "pidfd",
        _of(Kind.HANDLE),
        lambda held, _: held.is_outside,
        "it watches a program outside of the session",
    ),
    Rule(
        "namespace",
        _of(Kind.NAMESPACE),
        lambda held, _: held.is_outside,
        "it holds the door to another container ({})",
    ),
    Rule(
        "watch",
        _of(Kind.HANDLE),
        lambda held, _: bool(held.watches & words.UNWATCHED),
        "it waits for changes in /proc or /sys",
    ),
    Rule(
        "protocol",
        _of(Kind.SOCKET),
        lambda held, _: held.name not in words.SAVED_PROTOCOLS,
        "it has a connection of a kind that cannot be saved ({})",
    ),
    Rule(
        "outside stream",
        _of(Kind.SOCKET),
        lambda held, _: held.peer is Peer.OUTSIDE,
        "it is connected to a program outside of the session through a file (a UNIX socket)",
        "End the connection (for example an ssh-agent, a database or a container service).",
    ),
    Rule(
        "unread",
        _of(Kind.SOCKET),
        lambda held, _: held.peer is Peer.WAITING,
        "it has sent something to a program of the session that has not taken the call yet",
        "Wait a moment, or let the other program answer.",
    ),
    Rule(
        "not accepted",
        _of(Kind.SOCKET),
        lambda held, _: held.waiting > 0,
        "somebody has called it and it has not answered yet",
        "Wait a moment; if it stays, this program hangs.",
    ),
)
"""In the order in which they are told."""


def judge(tree: TreeFacts, *, ghost_bytes: int, gpu_saved: bool = False) -> tuple[Blocker, ...]:
    """Everything in the way, each once; at most `MOST_BLOCKERS`, and how many more."""
    setting = Setting(tree.ids, ghost_bytes, gpu_saved)
    found = dict.fromkeys(_all(tree, setting))
    if len(found) <= MOST_BLOCKERS:
        return tuple(found)
    kept = tuple(found)[:MOST_BLOCKERS]
    return (
        *kept,
        Blocker(0, "", f"there are {len(found) - MOST_BLOCKERS} more reasons like these"),
    )


def lacking(capabilities: tuple[str, ...]) -> Blocker:
    """Hubernate itself may not look, let alone save anything."""
    what = f"this machine does not let Hubernate save programs: it lacks {', '.join(capabilities)}"
    return Blocker(0, "", what, "An administrator has to start it with all capabilities.")


def _all(tree: TreeFacts, setting: Setting) -> Iterator[Blocker]:
    if tree.is_cut:
        what = "its programs have more files open than can be looked at"
        yield Blocker(tree.processes[0].pid, "session", what, "Close some, or end a program.")
    for process in tree.processes:
        yield from _of_process(process)
        for held in process.held:
            yield from _of_held(process, held, setting)


def _of_process(process: ProcessFacts) -> Iterator[Blocker]:
    name = printable(process.command, words.LONGEST_COMMAND)
    if process.tracer:
        what = f"it is being traced (by process {process.tracer} of this machine)"
        yield Blocker(process.pid, name, what, "End the debugger or tracer first.")
    for kind in sorted(process.own_namespaces):
        what = f"it has {words.NAMESPACES.get(kind, kind)}"
        yield Blocker(process.pid, name, what, "End the container or sandbox that runs in it.")


def _of_held(process: ProcessFacts, held: Held, setting: Setting) -> Iterator[Blocker]:
    """The first rule that holds: one thing is told once."""
    for rule in RULES:
        if held.kind in rule.kinds and rule.holds(held, setting):
            called = printable(rule.called(held))
            what = rule.what.format(called, gib=setting.ghost_bytes >> 30)
            yield Blocker(
                process.pid, printable(process.command, words.LONGEST_COMMAND), what, rule.remedy
            )
            return
