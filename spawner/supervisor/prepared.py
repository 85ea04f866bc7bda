"""What a supervisor that waits has made before it knows for whom.

Imports, a client of the store, and a fork that may become the filler: together half a second of
processor time, which a session that comes back need not wait for.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass

from snapshot.errors import SnapshotError
from snapshot.filling.program import Ready, Spare
from snapshot.model import StoreSettings
from snapshot.repository import open_repository

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Prepared:
    """`ready` is None if the store's client could not be made: the error is met again in time."""

    ready: Ready | None
    spare: Spare


def prepare(store: str) -> Prepared:
    """Make it. `store` is `StoreSettings` as JSON, or empty. Call it while there is one thread."""
    ready = None
    if store:
        settings = StoreSettings(**json.loads(store))
        try:
            ready = Ready(settings, open_repository(settings, ask=False))
        except (SnapshotError, OSError) as error:
            _log.warning("the store could not be opened yet: %s", error)
    return Prepared(ready, Spare(ready))
