"""Program `python -m spawner.supervisor --order FILE [--background]`, or `--wait [--store JSON]`.

With `--background` it forks first: the parent prints the supervisor's PID and start time as JSON
and exits, so that whoever starts a supervisor never becomes its parent. The imports come after the
fork because the parent needs none of them.

With `--wait` everything is imported first, and the path of the order is one line of standard input:
half a second that a session coming back need not wait for. The end of the input ends the waiting.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spawner.supervisor.prepared import Prepared


def main() -> int:
    """Entry point. 0: there is an outcome, or it was detached, or nobody needed it; 1: another
    supervisor is at work or this one failed."""
    parser = argparse.ArgumentParser(prog="spawner.supervisor", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--order")
    what.add_argument("--wait", action="store_true")
    parser.add_argument("--store", default="", help="the store's settings as JSON, with --wait")
    parser.add_argument("--background", action="store_true")
    arguments = parser.parse_args()
    prepared = None
    if arguments.wait:
        order, prepared = _wait(arguments.store)
    else:
        order = arguments.order
    if not order:
        return 0
    if arguments.background:
        _leave()
    from spawner.supervisor.running import run

    return run(order, prepared)


def _wait(store: str) -> tuple[str, Prepared]:
    """Import and prepare what a resume needs, then read the order's path. Standard error becomes
    its log."""
    import snapshot.freezer  # noqa: F401
    import spawner.supervisor.running  # noqa: F401
    from spawner.supervisor.prepared import prepare
    from spawner.supervisor.status import LOG_FILE

    prepared = prepare(store)
    order = sys.stdin.readline().strip()
    if order:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        log = os.open(os.path.join(os.path.dirname(order), LOG_FILE), flags, 0o600)
        os.dup2(log, 2)
        os.close(log)
    return order, prepared


def _leave() -> None:
    """Continue in a child with its own process session. The parent says who that is, and ends."""
    child = os.fork()
    if child == 0:
        os.setsid()
        os.chdir("/")
        quiet = os.open(os.devnull, os.O_RDWR)
        os.dup2(quiet, 0)
        # Standard error stays the log that the starter gave; nobody reads standard output any more.
        os.dup2(2, 1)
        return
    with open(f"/proc/{child}/stat") as handle:
        started = int(handle.read().rpartition(")")[2].split()[19])
    sys.stdout.write(json.dumps({"pid": child, "started": started}) + "\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
