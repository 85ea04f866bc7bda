"""The facts of one machine that start sandboxes: folders, tools, store, scheduler.

`hub_config` writes them as JSON (`site.json` in the state folder); the local spawner and the job
launcher read them, so that neither needs to know how the machine was set up.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter

from snapshot.model import Bind, StoreSettings, Tools


@dataclass(frozen=True, slots=True)
class LocalSite:
    """One machine. `environment_directory` is the virtual environment that sessions run from (seen
    at the same path inside). `users_file` keeps the accounts given out (see `spawner.identity`).
    `public_url` is where the Hub answers, as seen from inside a sandbox.
    `freezable` False (with `not_freezable_because`) refuses suspends with that reason."""

    python: str
    environment_directory: str
    run_directory: str
    homes_directory: str
    users_file: str
    scheduler_url: str
    tools: Tools
    store: StoreSettings
    reachable_ports: tuple[int, ...] = ()
    first_inner_root: int = 1_000_000
    binds: tuple[Bind, ...] = ()
    freezable: bool = True
    not_freezable_because: str = ""
    public_url: str = ""


_ADAPTER = TypeAdapter(LocalSite)


def write_site(site: LocalSite, path: Path) -> None:
    """Write atomically, readable by root only."""
    temporary = path.with_suffix(".new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as handle:
        json.dump(asdict(site), handle, indent=2)
    temporary.replace(path)


def read_site(path: Path) -> LocalSite:
    """Read and validate. Raises `pydantic.ValidationError` naming each wrong field."""
    return _ADAPTER.validate_json(path.read_bytes())
