"""Program `python -m spawner.supervisor --order FILE [--background]`.

With `--background` it forks first: the parent prints the supervisor's PID and start time as JSON
and exits, so that whoever starts a supervisor never becomes its parent. The imports come after the
fork because the parent needs none of them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys


def main() -> int:
    """Entry point. 0: there is an outcome, or it was detached; 1: another supervisor is at work or
    this one failed."""
    parser = argparse.ArgumentParser(prog="spawner.supervisor", description=__doc__)
    parser.add_argument("--order", required=True)
    parser.add_argument("--background", action="store_true")
    arguments = parser.parse_args()
    if arguments.background:
        _leave()
    from spawner.supervisor.running import run

    return run(arguments.order)


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
