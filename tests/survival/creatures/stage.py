"""When a creature looks at itself: after each of the stages that the test brings about.

Creatures are programs of a sandbox. Each makes what has to survive, says that it is ready, and then
checks at every stage that what it has still works. A failed check ends it with its traceback.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

STAGES = ("undone", "thawed", "again")
"""A suspend that was undone; a freeze and thaw; one more of what was thawed."""

FOLDER = os.path.expanduser("~/stages")


def reached(stage: str) -> bool:
    """True once the test has brought the stage about."""
    return os.path.exists(f"{FOLDER}/{stage}")


def say(text: str) -> None:
    """Tell the test."""
    print(text, flush=True)


def stages() -> Iterator[str]:
    """Each stage once it is there; what the loop's body does at it is the check."""
    say("ready")
    for stage in STAGES:
        wait_for(lambda stage=stage: reached(stage), 600)
        yield stage
        say(f"{stage}: survived")


def wait_for(holds: Callable[[], object], seconds: float = 20) -> None:
    """Wait for a condition; it fails the check if it does not come."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.02)


def python(program: str) -> str:
    """What a second Python prints, of one that ran to its end."""
    argv = [sys.executable, "-c", program]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()


def state_of(pid: int) -> str:
    """The letter of a process's state; Z: ended, nobody waited for it; T: stopped."""
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]
