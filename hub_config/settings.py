"""How one installation was started: ports, users, GPUs, times. One JSON file, no secrets in it."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from hub_config.paths import StateFolder

DEFAULT_PORT = 8000
HOST = "127.0.0.1"
SERVICE_NAME = "hubernate"
DEMO_USERS = ("alice", "bob", "carol")
ADMIN_USER = "admin"


@dataclass(frozen=True, slots=True)
class Ports:
    """Five neighbouring TCP ports on the loopback address, from the public one upwards."""

    public: int = DEFAULT_PORT

    @property
    def proxy_api(self) -> int:
        return self.public + 1

    @property
    def hub_api(self) -> int:
        return self.public + 2

    @property
    def scheduler(self) -> int:
        return self.public + 3

    @property
    def store(self) -> int:
        return self.public + 4

    @property
    def from_sandbox(self) -> tuple[int, ...]:
        """The only ports of the host that a session or job can reach."""
        return (self.public, self.hub_api)

    def named(self) -> dict[str, int]:
        """Every port with what it is for."""
        return {
            "public": self.public,
            "proxy_api": self.proxy_api,
            "hub_api": self.hub_api,
            "scheduler": self.scheduler,
            "store": self.store,
        }


@dataclass(frozen=True, slots=True)
class LocalSettings:
    """One run of `hubernate up`.

    `virtual_gpus` 0 means: use the GPUs that the driver reports, if any. `freezable` False carries
    the reason into every refused suspend.
    """

    state: str
    downloads: str
    ports: Ports = Ports()
    virtual_gpus: int = 0
    users: tuple[str, ...] = DEMO_USERS
    admins: tuple[str, ...] = (ADMIN_USER,)
    freezable: bool = True
    not_freezable_because: str = ""

    def folder(self) -> StateFolder:
        """The paths of this installation."""
        return StateFolder(Path(self.state), Path(self.downloads))

    @property
    def public_url(self) -> str:
        return f"http://{HOST}:{self.ports.public}"

    @property
    def hub_api_url(self) -> str:
        """The Hub's REST API, reached directly (works while the proxy is down)."""
        return f"http://{HOST}:{self.ports.hub_api}/hub/api"

    @property
    def scheduler_url(self) -> str:
        """The scheduler as programs on this machine reach it; it serves under the prefix that the
        proxy routes to it."""
        return f"http://{HOST}:{self.ports.scheduler}/services/{SERVICE_NAME}"

    @property
    def store_url(self) -> str:
        return f"http://{HOST}:{self.ports.store}"


_ADAPTER = TypeAdapter(LocalSettings)


def write_json(path: Path, value: Any, *, mode: int = 0o600) -> None:
    """Replace a file atomically with an indented JSON document."""
    temporary = path.with_name(path.name + ".new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w") as handle:
        json.dump(value, handle, indent=2)
        handle.write("\n")
    temporary.replace(path)


def write_settings(settings: LocalSettings, path: Path) -> None:
    """Write atomically."""
    write_json(path, asdict(settings))


def read_settings(path: Path) -> LocalSettings:
    """Read and validate. Raises `FileNotFoundError` where `hubernate up` never ran."""
    return _ADAPTER.validate_json(path.read_bytes())
