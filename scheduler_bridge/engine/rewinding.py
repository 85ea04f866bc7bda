"""How things stood before some events, from how they stand now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from scheduler_bridge.engine.books import Books
from scheduler_bridge.engine.tracks import BIRTHS, Track, before, counts
from scheduler_bridge.model.workload import Event
from scheduler_bridge.store.base import Store

_AT_ONCE: Final = 2000


def events_since(store: Store, event_id: int) -> list[Event]:
    """All events after this one, oldest first."""
    found: list[Event] = []
    while batch := store.events(after=event_id, limit=_AT_ONCE):
        found.extend(batch)
        event_id = batch[-1].id
    return found


def rewind(
    books: Books, now: Mapping[str, Track], events: Sequence[Event]
) -> tuple[dict[str, Track], dict[str, Track]]:
    """The tracks before these events (oldest first), and those with which workloads were born
    meanwhile."""
    tracks = dict(now)
    births: dict[str, Track] = {}
    for event in reversed(events):
        if not counts(event):
            continue
        name = event.workload_id
        track = tracks.get(name) or Track.of_workload(books.get(name))
        if event.kind in BIRTHS:
            births[name] = track
            tracks.pop(name, None)
        else:
            tracks[name] = before(track, event, books.store.lease)
    return tracks, births
