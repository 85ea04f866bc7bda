"""The store's part for estimates in a SQL database."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

from sqlalchemy import Connection, Engine, Row, delete, func, insert, select, update

from scheduler_bridge.model.phases import Phase
from scheduler_bridge.policy.estimates import Waited
from scheduler_bridge.store.errors import translated
from scheduler_bridge.store.estimates import Fate, Given, Tally
from scheduler_bridge.store.tables import ESTIMATES, EVENTS

_STARTS = (Phase.STARTING.value, Phase.RESUMING.value)


class SqlEstimates:
    """See `store.estimates.EstimateStore`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def add(self, given: Sequence[Given]) -> tuple[int, ...]:
        with translated("refused a write"), self._engine.begin() as connection:
            return tuple(_add(connection, each) for each in given)

    def open(self) -> dict[int, Given]:
        query = select(ESTIMATES).where(ESTIMATES.c.fate == Fate.OPEN.value)
        with translated("does not answer"), self._engine.connect() as connection:
            return {
                int(row.number): Given(*(getattr(row, name) for name in Given.__slots__))
                for row in connection.execute(query.order_by(ESTIMATES.c.number))
            }

    def settle(self, fates: Iterable[tuple[int, Fate, float]]) -> None:
        with translated("refused a write"), self._engine.begin() as connection:
            for number, fate, at in fates:
                connection.execute(
                    update(ESTIMATES)
                    .where(ESTIMATES.c.number == number)
                    .values(fate=fate.value, settled_at=at)
                )

    def tally(self, since: float) -> tuple[Tally, ...]:
        columns = ESTIMATES.c
        query = (
            select(columns.basis, columns.fate, func.count())
            .where(columns.given_at >= since)
            .group_by(columns.basis, columns.fate)
            .order_by(columns.basis, columns.fate)
        )
        with translated("does not answer"), self._engine.connect() as connection:
            return tuple(
                Tally(row[0], Fate(row[1]), int(row[2])) for row in connection.execute(query)
            )

    def compared(self, basis: str, count: int) -> tuple[Fate, ...]:
        columns = ESTIMATES.c
        query = (
            select(columns.fate)
            .where(columns.basis == basis)
            .where(columns.fate.not_in([Fate.OPEN.value, Fate.VOID.value]))
            .order_by(columns.number.desc())
            .limit(count)
        )
        with translated("does not answer"), self._engine.connect() as connection:
            found = [Fate(row.fate) for row in connection.execute(query)]
        return tuple(reversed(found))

    def forget(self, before: float) -> None:
        with translated("refused a write"), self._engine.begin() as connection:
            connection.execute(delete(ESTIMATES).where(ESTIMATES.c.given_at < before))

    def waits(self, events: int) -> tuple[Waited, ...]:
        columns = EVENTS.c
        with translated("does not answer"), self._engine.connect() as connection:
            newest = int(connection.execute(select(func.max(columns.id))).scalar() or 0)
            query = (
                select(columns.evidence)
                .where(columns.id > newest - events)
                .where(columns.kind == "phase", columns.source == Phase.QUEUED.value)
                .where(columns.target.in_(_STARTS))
                .order_by(columns.id)
            )
            found = [row.evidence for row in connection.execute(query)]
        return tuple(_waited(each) for each in found if "waited_seconds" in each)


def _add(connection: Connection, given: Given) -> int:
    values = {name: getattr(given, name) for name in Given.__slots__}
    done = connection.execute(
        insert(ESTIMATES).values(**values, fate=Fate.OPEN.value, settled_at=None)
    )
    return int(cast("Row[Any]", done.inserted_primary_key)[0])


def _waited(evidence: dict[str, Any]) -> Waited:
    """Events of versions before say neither team nor protection."""
    return Waited(
        float(evidence["waited_seconds"]),
        len(evidence.get("gpus", ())),
        str(evidence.get("team", "")),
        bool(evidence.get("protected", False)),
    )
