"""One machine's facts for tests with real sandboxes: own folders, the shared downloads."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from hub_config.paths import state_folder
from snapshot.model import Bind, StoreSettings
from spawner.site import LocalSite

SOURCE = Path(__file__).resolve().parents[2]

needs_sandbox = pytest.mark.skipif(
    os.getuid() != 0 or not Path(state_folder().tools().init[0]).exists(),
    reason="needs root and the tools that `make up` installs",
)


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
        yield LocalSite(
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
