"""One machine's facts for tests with real sandboxes: own folders, the shared downloads."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from hub_config.paths import state_folder
from snapshot.model import Bind, Process, StoreSettings
from snapshot.network import LINK_FILE
from snapshot.programs import send_signal
from spawner.site import LocalSite
from spawner.supervisor.status import read_status

SOURCE = Path(__file__).resolve().parents[2]

needs_sandbox = pytest.mark.skipif(
    os.getuid() != 0 or not Path(state_folder().tools().init[0]).exists(),
    reason="needs root and the tools that `make up` installs",
)


def end_everything(site: LocalSite) -> None:
    """End what supervisors of this site left behind: supervisors, sandboxes, connections."""
    for folder in Path(site.run_directory).iterdir():
        status = read_status(folder)
        for process in (status.supervisor, status.sandbox) if status else ():
            if process is not None:
                send_signal(process, signal.SIGKILL)
        # Only now: a supervisor that lived would have made another.
        link = folder / LINK_FILE
        if link.exists():
            send_signal(Process(**json.loads(link.read_bytes())["process"]), signal.SIGKILL)


@contextmanager
def local_site(scheduler_url: str) -> Iterator[LocalSite]:
    """A site whose folders can be passed through by session users, unlike pytest's own."""
    with TemporaryDirectory(prefix="hubernate-site-") as name:
        root = Path(name)
        root.chmod(0o711)
        for folder in ("run", "homes"):
            (root / folder).mkdir(mode=0o711)
        for folder in ("store", "keys", "cache"):
            (root / folder).mkdir(mode=0o700)
        venv = Path(sys.prefix)
        site = LocalSite(
            python=str(venv / "bin/python"),
            environment_directory=str(venv),
            run_directory=str(root / "run"),
            homes_directory=str(root / "homes"),
            users_file=str(root / "users.json"),
            scheduler_url=scheduler_url,
            tools=state_folder().tools(),
            store=StoreSettings(
                "directory",
                str(root / "store"),
                keys_directory=str(root / "keys"),
                cache_directory=str(root / "cache"),
            ),
            binds=(Bind(str(SOURCE), str(SOURCE), read_only=True),),
        )
        try:
            yield site
        finally:
            end_everything(site)
