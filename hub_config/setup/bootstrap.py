"""Entry point of set-up: `python3 hub_config/setup/bootstrap.py GOAL`.

This file must parse on any Python 3: it says what is missing, or goes on with the system's
interpreter, before anything newer is imported.
"""

import os
import sys

OLDEST = (3, 11)
SYSTEM_PYTHON = "/usr/bin/python3"


def _change_interpreter():  # type: () -> None
    """Replace this process by the system's Python, once, where the first on PATH is too old."""
    if os.access(SYSTEM_PYTHON, os.X_OK) and not os.environ.get("HUBERNATE_CHANGED_PYTHON"):
        os.environ["HUBERNATE_CHANGED_PYTHON"] = "1"
        os.execv(SYSTEM_PYTHON, [SYSTEM_PYTHON, "-B", *sys.argv])  # noqa: S606 - no shell wanted
    sys.exit(
        "Hubernate needs Python {}.{} or newer; this is {} ({}). Debian 12 and 13 have it: "
        "apt-get install python3".format(*OLDEST, sys.version.split()[0], sys.executable)
    )


if __name__ == "__main__":
    if sys.version_info < OLDEST:
        _change_interpreter()
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    from hub_config.setup.steps import main

    sys.exit(main(sys.argv[1:]))
