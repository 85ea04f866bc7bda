"""Finds the scheduler plugin that a trait names, once per process."""

from __future__ import annotations

import json
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final, cast

from scheduler_bridge.plugin import SchedulerPlugin

GROUP: Final = "hubernate.schedulers"


class NoSuchScheduler(ValueError):
    """The trait names a plugin that is not installed; the message lists those that are."""


@cache
def scheduler_named(name: str, url: str, token_file: str) -> SchedulerPlugin:
    """The plugin of that entry-point name, shared by all spawners of this process.

    Raises `NoSuchScheduler`, and `OSError` when the token file cannot be read.
    """
    found = entry_points(group=GROUP)
    if name not in found.names:
        known = ", ".join(sorted(found.names)) or "none"
        raise NoSuchScheduler(f"No scheduler plugin {name!r} is installed. Installed: {known}.")
    token = Path(token_file).read_text().strip() if token_file else ""
    make: Any = found[name].load()
    return cast(SchedulerPlugin, make(url, token=token))


def read_json(path: Path) -> dict[str, Any]:
    """One JSON object from a file; an empty one if the file is missing or something else."""
    try:
        value = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
