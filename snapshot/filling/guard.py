"""The last holder: keeps a tree's userfaultfds, and ends the tree when nobody else does any more.

While one process has a descriptor open, a task that touches memory which has not come waits. With
the last one closed it would read zeros and go on. So this one waits for the others: a message
`done` ends it quietly, the end of its socket means that supervisor and filler are gone, and it ends
the tree before it lets go. It does nothing else, so that nothing else can end it.

It runs in a bare interpreter: `guard.argv()` with its socket as standard input.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from snapshot import proc
from snapshot.filling import wire
from snapshot.half_built import half_built

_SOURCE = str(Path(__file__).resolve().parent.parent.parent)


def argv() -> tuple[str, ...]:
    """How to start it, in an interpreter that loads nothing it can spare."""
    start = f"import sys; sys.path.insert(0, {_SOURCE!r}); from snapshot.filling.guard import main"
    return (sys.executable, "-I", "-S", "-c", f"{start}; main()")


def main() -> None:
    """Entry point."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    wire.hold_many()
    watch(socket.socket(fileno=os.dup(0)))


def watch(sock: socket.socket) -> None:
    """Hold what is sent, until it is done or everybody else is gone."""
    held: dict[int, int] = {}
    tree, criu, pid_file = -1, 0, ""
    while (received := wire.receive(sock)) is not None:
        message, descriptors = received
        match message["is"]:
            case "done":
                return
            case "hold":
                _let_go(held, message["number"])
                held[message["number"]] = descriptors[0]
            case "drop":
                _let_go(held, message["number"])
            case "tree":
                (tree,) = descriptors
            case "restoring":
                criu, pid_file = message["pid"], message["pid_file"]
    end([tree] if tree >= 0 else roots(criu, pid_file))


def _let_go(held: dict[int, int], number: int) -> None:
    if (descriptor := held.pop(number, None)) is not None:
        os.close(descriptor)


def end(handles: Sequence[int]) -> None:
    """Kill processes (pidfds), and with the first one of a tree its PID namespace; wait until they
    have ended. All are killed first: CRIU keeps what it traces from ending."""
    for each in handles:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(each, signal.SIGKILL)
    for each in handles:
        waiting = select.poll()
        waiting.register(each, select.POLLIN)
        waiting.poll()


def roots(criu: int, pid_file: str) -> list[int]:
    """Pidfds of CRIU, of what it is making, also if it was killed first, and of the tree that it has
    made: the supervisor ended before it could say which that is."""
    written = proc.read_text(pid_file).strip()
    pids = [criu, *proc.children(criu)] if criu else []
    pids += [each.pid for each in half_built(Path(pid_file).parent)] if pid_file else []
    found = []
    for pid in [*pids, *([int(written)] if written.isdigit() else [])]:
        with contextlib.suppress(ProcessLookupError):
            found.append(os.pidfd_open(pid))
    return found
