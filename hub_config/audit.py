"""What was deleted for good: when, by which rule, and how much. One JSON document a line.

The line is written before the deletion, so that nothing goes without one; a run that was broken off
may leave two lines for the same thing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError


@dataclass(frozen=True, slots=True)
class Gone:
    """One thing that was deleted. `what` is a snapshot's key in the store, or `keys/USER` for a
    user's keys; `at` is in UNIX seconds; `rule` is the policy's, or `by hand`."""

    at: float
    owner: str
    session: str
    what: str
    rule: str
    reason: str
    stored_bytes: int = 0
    actor: str = ""


_ADAPTER = TypeAdapter(Gone)


def note(path: Path, gone: Iterable[Gone]) -> None:
    """Append the lines; they are on the disk when this returns."""
    text = "".join(json.dumps(asdict(each)) + "\n" for each in gone)
    if not text:
        return
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(descriptor, "w") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())


def read(path: Path) -> tuple[Gone, ...]:
    """All lines, oldest first; one that a crash cut short is left out."""
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        return ()
    found = []
    for line in lines:
        try:
            found.append(_ADAPTER.validate_json(line))
        except ValidationError:
            continue
    return tuple(found)
