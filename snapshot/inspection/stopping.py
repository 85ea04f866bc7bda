"""Takes hold of a tree with ptrace, the way CRIU does before a dump, to learn whether CRIU can.

`why_not` only attaches to every thread and lets go: nobody notices. It tells that nobody else traces
one of them, and is done right before a dump. `while_stopped` also stops them, for a test that somebody
asked for. Programs then notice that a wait for events may end early (EINTR), and a wait that goes on
is one that CRIU cannot set going again after a restore; so never every minute, nor before a dump.

PTRACE_SEIZE and PTRACE_INTERRUPT send no signal, unlike PTRACE_ATTACH: shells see no stopped job, and
jobs that the user has stopped stay stopped.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from ptrace.binding.func import PTRACE_DETACH, ptrace
from ptrace.error import PtraceError

from snapshot import proc
from snapshot.inspection import tree, words
from snapshot.inspection.unix_sockets import in_own_thread
from snapshot.model import Blocker, Process
from snapshot.printable import printable

PTRACE_SEIZE: Final = 0x4206
PTRACE_INTERRUPT: Final = 0x4207
PTRACE_EVENT_STOP: Final = 128
WAIT_FOR_ALL_KINDS: Final = 0x40000000  # __WALL: also threads of others

STOP_SECONDS: Final = 3.0
"""How long one thread may take to stop."""
ALL_SECONDS: Final = 10.0
"""How long all of them may take together, as with CRIU: meanwhile the rest stands still."""
PASSES: Final = 20
LOOK_SECONDS: Final = 0.0005

_TRACED: Final = "it cannot be stopped: another program traces it"
_HANGS: Final = "it does not stop: it waits for a disk or a network drive"
_REMEDIES: Final = {
    _TRACED: "End the debugger or tracer first.",
    _HANGS: "Wait until the drive answers.",
}

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Stopped:
    """What came of it: the blockers that only this tells, how many threads were stopped, and for
    how many seconds."""

    blockers: tuple[Blocker, ...]
    threads: int
    seconds: float


@dataclass(slots=True)
class _Grip:
    """Threads that this thread is attached to; those that are stopped, with the signal that each is
    to get when it is let go. The end of this thread lets go of the others."""

    seized: set[int] = field(default_factory=set)
    held: dict[int, int] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    until: float = field(default_factory=lambda: time.monotonic() + ALL_SECONDS)

    def seize(self, thread: int) -> None:
        """Attach to a thread, which runs on, or note why that cannot be."""
        try:
            ptrace(PTRACE_SEIZE, thread)
            self.seized.add(thread)
        except PtraceError as error:
            if error.errno != errno.ESRCH and not _has_ended(thread):
                self.refused[thread] = _TRACED

    def stop(self, thread: int) -> None:
        """The same, and stop it."""
        self.seize(thread)
        if thread in self.seized:
            with contextlib.suppress(PtraceError):
                ptrace(PTRACE_INTERRUPT, thread)
                self._await(thread)

    def blockers(self) -> tuple[Blocker, ...]:
        """Why threads could not be attached to or stopped, each reason of a program once."""
        return tuple(dict.fromkeys(_blocker(*each) for each in self.refused.items()))

    def _await(self, thread: int) -> None:
        deadline = min(time.monotonic() + STOP_SECONDS, self.until)
        while True:
            with contextlib.suppress(ChildProcessError):
                found, status = os.waitpid(thread, os.WNOHANG | WAIT_FOR_ALL_KINDS)
                if found:
                    self._note(thread, status)
                    return
            if _has_ended(thread):
                return
            if time.monotonic() > deadline:
                self.refused[thread] = _HANGS
                return
            time.sleep(LOOK_SECONDS)

    def _note(self, thread: int, status: int) -> None:
        if os.WIFSTOPPED(status):
            is_ours = status >> 16 == PTRACE_EVENT_STOP
            self.held[thread] = 0 if is_ours else os.WSTOPSIG(status)

    def let_go(self) -> None:
        """Let everything run on, each with the signal that was on its way."""
        for thread, number in self.held.items():
            with contextlib.suppress(PtraceError):
                ptrace(PTRACE_DETACH, thread, 0, number)
        self.held.clear()


def why_not(process: Process) -> tuple[Blocker, ...]:
    """Why CRIU could not take hold of the tree, as far as can be told without stopping it."""

    def attach() -> tuple[Blocker, ...]:
        grip = _Grip()
        _take_all(process, grip, grip.seize)
        return grip.blockers()

    return in_own_thread(attach)


def while_stopped(process: Process, look: Callable[[], Answer]) -> tuple[Stopped, Answer]:
    """Stop the tree, look, let it go on. The tree goes on whatever `look` raises, and if we die."""
    return in_own_thread(lambda: _while_stopped(process, look))


def _while_stopped(process: Process, look: Callable[[], Answer]) -> tuple[Stopped, Answer]:
    grip = _Grip()
    begun = time.monotonic()
    try:
        _take_all(process, grip, grip.stop)
        threads = len(grip.held)
        answer = look()
    finally:
        grip.let_go()
    seconds = time.monotonic() - begun
    return Stopped(grip.blockers(), threads, seconds), answer


def _take_all(process: Process, grip: _Grip, take: Callable[[int], None]) -> None:
    """Do it to every thread, until there are no new ones."""
    for _ in range(PASSES):
        threads = [t for member in tree.members(process) for t in proc.threads(member.pid)]
        new = [t for t in threads if t not in grip.seized and t not in grip.refused]
        new = [t for t in new if not _has_ended(t)]
        if not new:
            return
        for thread in new:
            take(thread)


def _has_ended(thread: int) -> bool:
    found = proc.stat(thread)
    return found is None or found.state in proc.GONE_STATES


def _blocker(thread: int, what: str) -> Blocker:
    status = proc.read_text(f"/proc/{thread}/status")
    command = printable(proc.command(thread), words.LONGEST_COMMAND)
    return Blocker(tree.inner_pid(status), command, what, _REMEDIES[what])
