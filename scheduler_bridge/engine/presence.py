"""Which machines answer. One that does not gets no new work; its leases stay until their time.

A machine answers when something there reports by itself (its agent, its cluster's manager, or this
very program). Where nothing ever did, it counts as silent once every holder on it has had to halt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from scheduler_bridge.engine.books import Books
from scheduler_bridge.engine.holders import Standing
from scheduler_bridge.engine.settings import Settings
from scheduler_bridge.model.nodes import NodeRecord, NodeStanding
from scheduler_bridge.model.workload import Node
from scheduler_bridge.store.base import LeaseRecord

_ACTOR: Final = "scheduler"
_LOOK_EVERY_SECONDS: Final = 1.0


class Presence:
    """What was heard from each machine since this scheduler started, in memory; what must outlive
    it is stored."""

    def __init__(
        self, books: Books, settings: Settings, on_back: Callable[[], object] = lambda: None
    ) -> None:
        """`on_back` is called when a machine answers again: there may be room for work."""
        self._books = books
        self._on_back = on_back
        self._settings = settings
        self.began = books.clock.now()
        self._looked_at = self.began
        self._are_some_silent = False
        self._reported: dict[str, float] = {}
        self._heard: dict[str, float] = {}
        self._spoke: dict[str, float] = {}
        self._ghosts: dict[str, float] = {}
        self._look_at_all()

    def report(self, names: Iterable[str]) -> None:
        """These machines tell that they are there."""
        back, now = False, self._books.clock.now()
        for name in names:
            record = self._books.node_record(name)
            back = back or record.silent_since is not None
            self._reported[name] = self._heard[name] = now
            if not record.reports:
                with self._books.draft() as draft:
                    draft.put_node(replace(record, reports=True))
        if back:
            self._welcome_back()

    def hear(self, record: LeaseRecord, standing: Standing) -> None:
        """Somebody spoke for this lease, so its machine answers."""
        name, now = record.lease.node, self._books.clock.now()
        self._heard[name] = now
        if standing is Standing.RELEASED:
            self._ghosts[record.lease.id] = now
        elif standing is not Standing.FENCED:
            self._spoke[record.lease.id] = now
        known = self._books.node_record(name)
        if known.silent_since is not None and not known.reports:
            self._welcome_back()

    def spoke_at(self, lease_id: str) -> float | None:
        """When the holder of a lease was heard last."""
        return self._spoke.get(lease_id)

    def is_ghost(self, lease_id: str) -> bool:
        """Whether its former holder was heard lately."""
        at = self._ghosts.get(lease_id)
        return at is not None and self._books.clock.now() - at < self._settings.silent_seconds

    def heard_at(self, name: str) -> float | None:
        """When it was heard last. Of what an earlier scheduler heard only the end is known."""
        return self._heard.get(name, self._books.node_record(name).silent_since)

    def standing(self, node: Node) -> NodeStanding:
        """What may be expected of a machine of the fleet, as it was last looked at."""
        return standing_of(node, self._books.node_record(node.name))

    def look(self) -> None:
        """Notice who fell silent and who is back. Call before planning; while nobody is silent, that
        is cheap however often."""
        now = self._books.clock.now()
        if self._are_some_silent or abs(now - self._looked_at) >= _LOOK_EVERY_SECONDS:
            self._looked_at = now
            self._look_at_all()

    def _welcome_back(self) -> None:
        self._look_at_all()
        self._on_back()

    def _look_at_all(self) -> None:
        self._are_some_silent = False
        last_halt, leases = self._last_halts(), self._books.leases
        self._spoke = {name: at for name, at in self._spoke.items() if name in leases}
        # A machine of which nobody ever spoke, and that nobody had to leave, cannot be silent.
        known = last_halt.keys() | self._books.node_records.keys() | self._heard.keys()
        for name in sorted(known & self._books.fleet.names):
            record = self._books.node_record(name)
            silent = self._is_silent(record, last_halt.get(name))
            self._are_some_silent |= silent
            if silent != (record.silent_since is not None):
                self._note(record, silent=silent)
        self.close()

    def close(self) -> None:
        """Keep new work from machines that do not answer or are dead."""
        stored = self._books.node_records.values()
        closed = {it.name for it in stored if it.death or it.silent_since is not None}
        self._books.close_nodes(closed & self._books.fleet.names)

    def _last_halts(self) -> dict[str, float]:
        """By when every holder of a machine has had to halt."""
        last: dict[str, float] = {}
        for record in self._books.leases.values():
            if record.taken_at is not None:
                name = record.lease.node
                last[name] = max(last.get(name, 0.0), fenced_at(record, self._settings))
        return last

    def _is_silent(self, record: NodeRecord, last_halt: float | None) -> bool:
        now, patience = self._books.clock.now(), self._settings.silent_seconds
        if record.reports:
            reported = self._reported.get(record.name)
            if reported is None and record.silent_since is not None:
                return True
            return now - (self.began if reported is None else reported) >= patience
        heard = self._heard.get(record.name)
        has_halted = last_halt is not None and now >= last_halt
        return has_halted and (heard is None or now - heard >= patience)

    def _note(self, record: NodeRecord, *, silent: bool) -> None:
        heard = self._heard.get(record.name, self.began)
        with self._books.draft() as draft:
            draft.put_node(replace(record, silent_since=heard if silent else None))
            draft.note(
                "node_silent" if silent else "node_back",
                None,
                cause=f"{record.name} {'does not answer' if silent else 'answers again'}",
                actor=_ACTOR,
                evidence={"node": record.name, "heard_at": heard},
            )


def standing_of(node: Node, record: NodeRecord) -> NodeStanding:
    """What may be expected of a machine of which this is stored."""
    if record.death is not None:
        return NodeStanding.DEAD
    if record.silent_since is not None:
        return NodeStanding.SILENT
    return NodeStanding.READY if node.ready else NodeStanding.UNREADY


def fenced_at(record: LeaseRecord, settings: Settings) -> float:
    """By when a holder that does not renew any more has halted its tree (UNIX seconds). A lease that
    nobody took up has no holder."""
    if record.taken_at is None:
        return record.lease.granted_at
    return record.lease.expires_at + settings.lease_margin
