"""The PostgreSQL server that tests start for themselves. Nothing else of ours needs one here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hub_config.setup.debian import install_on_machine
from hub_config.setup.progress import Progress

PACKAGES = ("postgresql",)
INSTALLED = Path("/usr/lib/postgresql")
CLUSTER_SETTINGS = Path("/etc/postgresql-common/createcluster.d/hubernate-setup.conf")
"""Debian's package reads the folder before it makes a server of its own."""


def server_programs(installed: Path = INSTALLED) -> Path | None:
    """The folder with `initdb` and `pg_ctl` of the newest version, if there is one."""
    found = [path.parent for path in installed.glob("*/bin/initdb") if os.access(path, os.X_OK)]
    return max(found, key=_version, default=None)


def _version(programs: Path) -> int:
    name = programs.parent.name
    return int(name) if name.isdecimal() else 0


def ensure(progress: Progress) -> None:
    """Install it where it is missing, without the server that the package would start at once."""
    if server_programs() is not None:
        return
    with _no_server_at_once():
        install_on_machine("postgres", PACKAGES, progress)


@contextmanager
def _no_server_at_once() -> Iterator[None]:
    if os.geteuid() != 0:
        yield
        return
    folder = CLUSTER_SETTINGS.parent
    folder.mkdir(parents=True, exist_ok=True)
    CLUSTER_SETTINGS.write_text("create_main_cluster = false\n")
    try:
        yield
    finally:
        CLUSTER_SETTINGS.unlink()
        # others' settings stay, and their folder with them
        with suppress(OSError):
            folder.rmdir()
