"""Files that a supervisor leaves in `/run/hubernate`, a folder that belongs to the session's user.

Root writes where an ordinary user may have put links: everything is opened relative to the folder,
never through a link, and takes its place by rename.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from snapshot import sandbox
from snapshot.model import SandboxSpec

RESUME_FILE = "resume.json"
GPUS_FILE = "gpus.json"
IDENTITY_FILE = "identity.json"

_IDENTITY = re.compile(r"JUPYTERHUB_\w+|JPY_API_TOKEN|HUBERNATE_\w+")
"""Variables that say who a server is to the Hub, and as what it is reached."""


def prepare(folder: Path, uid: int, gid: int) -> None:
    """Make the folder (0700, owned by the user). What lies in it stays."""
    folder.mkdir(mode=0o700, exist_ok=True)
    with opened(folder) as descriptor:
        os.fchown(descriptor, uid, gid)
        os.fchmod(descriptor, 0o700)


@contextmanager
def opened(folder: Path) -> Iterator[int]:
    """A descriptor of the folder itself."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def write_json(spec: SandboxSpec, name: str, value: dict[str, Any]) -> None:
    """Put a file readable by the session's user in place, atomically."""
    sandbox.put_inside(spec, name, json.dumps(value).encode())


def tell_identity(spec: SandboxSpec, *, epoch: int) -> None:
    """Leave for the server extension who the restored server is from now on (see
    `spawner.extension_identity`). The order of a resume is the Hub's of today, while the memory
    has the URL and the token of the first start, or of the session that this is a fork of."""
    environment = {n: v for n, v in spec.environment.items() if _IDENTITY.fullmatch(n)}
    write_json(spec, IDENTITY_FILE, {"epoch": epoch, "environment": environment})


def announce_gap(
    spec: SandboxSpec,
    *,
    epoch: int,
    now: float,
    seconds: float | None,
    notes: tuple[str, ...] = (),
) -> None:
    """Tell the server extension that time passed without it: after a resume, or after a halt.

    `at` (UNIX seconds) tells two gaps of one epoch apart; `seconds` None: as long as it notices.
    """
    write_json(
        spec, RESUME_FILE, {"epoch": epoch, "at": now, "seconds": seconds, "notes": list(notes)}
    )
