"""A PID and a mount namespace of its own for a run.

Whatever is still there after a round is therefore ours, whoever its parent is; and nothing of a run,
however it ends, outlives it on the machine.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Final, NoReturn

_INSIDE: Final = "HUBERNATE_CHAOS_ENCLOSED"


def enclosed(main: Callable[[], int]) -> NoReturn:
    """Run this program again inside, and there `main`; ends with its exit status."""
    if os.environ.get(_INSIDE) != "yes":
        os.environ[_INSIDE] = "yes"
        alone = ("unshare", "--pid", "--fork", "--mount", "--mount-proc", "--kill-child")
        os.execvp(alone[0], (*alone, sys.executable, "-m", "tests.chaos", *sys.argv[1:]))
    child = os.fork()
    if child == 0:
        sys.exit(main())
    sys.exit(_be_first(child))


def _be_first(child: int) -> int:
    """What the first process of a PID namespace is for: reap what others left to it."""

    def pass_on(number: int, _: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, pass_on)
    while True:
        pid, status = os.wait()
        if pid == child:
            return os.waitstatus_to_exitcode(status)
