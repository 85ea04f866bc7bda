"""The one state folder: what lies where. Everything the product writes outside a checkout is here."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from snapshot.model import Tools

DEFAULT_STATE = Path("/var/lib/hubernate")
LAYOUT_VERSION = 1


@dataclass(frozen=True, slots=True)
class StateFolder:
    """Paths below one state folder. Two state folders on one machine do not know each other,
    except that `venv`, `tools` and `proxy` (downloads) may be shared through `downloads`."""

    root: Path
    downloads: Path

    @property
    def venv(self) -> Path:
        """Virtual environment, readable by session users."""
        return self.downloads / "venv"

    @property
    def tools_prefix(self) -> Path:
        """CRIU, pasta, tini and ss with their libraries."""
        return self.downloads / "tools"

    @property
    def proxy(self) -> Path:
        """configurable-http-proxy (node_modules)."""
        return self.downloads / "proxy"

    @property
    def version_file(self) -> Path:
        return self.root / "VERSION"

    @property
    def secrets(self) -> Path:
        """Mode 0700: tokens, cookie secret, store credentials, demo password."""
        return self.root / "secrets"

    @property
    def keys(self) -> Path:
        """Mode 0700: the key-encryption key of snapshots."""
        return self.root / "keys"

    @property
    def hub(self) -> Path:
        """Mode 0700: the Hub's database and proxy PID file."""
        return self.root / "hub"

    @property
    def scheduler(self) -> Path:
        """Mode 0700: the scheduler's database and lock."""
        return self.root / "scheduler"

    @property
    def store(self) -> Path:
        """Mode 0700: the embedded S3 server's data."""
        return self.root / "store"

    @property
    def cache(self) -> Path:
        """Mode 0700: encrypted packs kept on this node."""
        return self.root / "cache"

    @property
    def run(self) -> Path:
        """Mode 0711: one folder per session or job supervisor."""
        return self.root / "run"

    @property
    def homes(self) -> Path:
        """Mode 0711: one folder per user, mode 0700, owned by the user."""
        return self.root / "homes"

    @property
    def logs(self) -> Path:
        """Mode 0700: one log per program."""
        return self.root / "logs"

    @property
    def config(self) -> Path:
        """What an operator edits: policy.yaml, profiles.yaml."""
        return self.root / "config"

    @property
    def site_file(self) -> Path:
        return self.root / "site.json"

    def tools(self) -> Tools:
        """How the programs in the private prefix are started."""
        prefix = self.tools_prefix
        libraries = prefix / "usr/lib/x86_64-linux-gnu"
        loader = (str(libraries / "ld-linux-x86-64.so.2"), "--library-path", str(libraries))
        return Tools(
            criu=(*loader, str(prefix / "usr/sbin/criu")),
            pasta=(*loader, str(prefix / "usr/bin/pasta")),
            init=(str(prefix / "bin/tini"),),
            socket_statistics=(*loader, str(prefix / "usr/bin/ss")),
        )


def state_folder(root: str | None = None) -> StateFolder:
    """The state folder from the argument, else HUBERNATE_STATE, else the default.

    Downloads live in the same folder unless HUBERNATE_DOWNLOADS says otherwise (tests share them).
    """
    path = Path(root or os.environ.get("HUBERNATE_STATE") or DEFAULT_STATE)
    return StateFolder(path, Path(os.environ.get("HUBERNATE_DOWNLOADS") or path))
