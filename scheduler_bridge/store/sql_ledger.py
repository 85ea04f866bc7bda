"""The ledger's part of the store in a SQL database."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Select,
    Table,
    func,
    insert,
    literal,
    or_,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from scheduler_bridge.model.usage import HOURS_PER_DAY, FleetSums, TeamSums, UsageKey
from scheduler_bridge.policy.ledger import Sums
from scheduler_bridge.store.errors import translated
from scheduler_bridge.store.ledger import LedgerMoved, Mark, Reach
from scheduler_bridge.store.tables import (
    FLEET_HOURS,
    LEDGER_MARK,
    TEAM_HOURS,
    USAGE_DAYS,
    USAGE_HOURS,
)

_THE_ONE = 1


class SqlLedger:
    """See `store.ledger.LedgerStore`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def mark(self) -> Mark | None:
        with translated("does not answer"), self._engine.connect() as connection:
            row = connection.execute(select(LEDGER_MARK)).first()
        return None if row is None else Mark(row.number, row.at, row.event_id, row.gpus, row.head)

    def add(self, sums: Sums, mark: Mark) -> None:
        with translated("refused a write"), self._engine.begin() as connection:
            _set_mark(connection, mark)
            usage = (
                {"hour": hour, **key._asdict(), "amount": amount}
                for (hour, key), amount in sums.usage.items()
            )
            teams = (
                {"hour": hour, "team": team, **it._asdict()}
                for (hour, team), it in sums.teams.items()
            )
            fleet = ({"hour": hour, **it._asdict()} for hour, it in sums.fleet.items())
            for table, rows in (
                (USAGE_HOURS, usage),
                (USAGE_DAYS, _by_day(sums)),
                (TEAM_HOURS, teams),
                (FLEET_HOURS, fleet),
            ):
                _add(connection, table, rows)

    def usage(self, reach: Reach) -> dict[tuple[int, UsageKey], int]:
        found: dict[tuple[int, UsageKey], int] = {}
        for table, first, end in _pieces(reach):
            for row in self._rows(_usage(table, reach, first, end)):
                # all in one bucket: its name is where the whole begins, not where the piece does
                begin = reach.first if reach.bucket is None else int(row[0])
                key = (begin, UsageKey(row[1], row[2], row[3], row[4]))
                found[key] = found.get(key, 0) + int(row[5])
        return found

    def teams(self, reach: Reach) -> dict[tuple[int, str], TeamSums]:
        columns = TEAM_HOURS.c
        sums = tuple(columns[name] for name in TeamSums._fields)
        query = _summed(TEAM_HOURS, reach, (columns.team,), sums)
        if reach.teams is not None:
            query = query.where(columns.team.in_(list(reach.teams)))
        return {(int(row[0]), row[1]): TeamSums(*map(int, row[2:])) for row in self._rows(query)}

    def fleet(self, reach: Reach) -> FleetSums:
        sums = [func.coalesce(func.sum(FLEET_HOURS.c[name]), 0) for name in FleetSums._fields]
        query = select(*sums).where(_within(FLEET_HOURS, reach))
        return FleetSums(*map(int, next(iter(self._rows(query)))))

    def _rows(self, query: Select[Any]) -> list[Any]:
        with translated("does not answer"), self._engine.connect() as connection:
            return list(connection.execute(query))


def _set_mark(connection: Connection, mark: Mark) -> None:
    values = {
        "number": mark.number,
        "at": mark.at,
        "event_id": mark.event_id,
        "gpus": mark.gpus,
        "head": mark.head,
    }
    is_there = connection.execute(select(LEDGER_MARK.c.number)).first()
    if is_there is None and mark.number == 1:
        connection.execute(insert(LEDGER_MARK).values(id=_THE_ONE, **values))
        return
    before = LEDGER_MARK.c.number == mark.number - 1
    if connection.execute(update(LEDGER_MARK).where(before).values(**values)).rowcount != 1:
        raise LedgerMoved(f"The ledger's mark is not number {mark.number - 1} any more.")


def _add(connection: Connection, table: Table, rows: Iterable[Mapping[str, Any]]) -> None:
    listed = list(rows)
    if not listed:
        return
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    new = dialect.insert(table)
    keys = [column.name for column in table.primary_key]
    added = {
        column.name: column + new.excluded[column.name]
        for column in table.columns
        if not column.primary_key
    }
    connection.execute(new.on_conflict_do_update(index_elements=keys, set_=added), listed)


def _by_day(sums: Sums) -> Iterator[Mapping[str, Any]]:
    days: dict[tuple[int, UsageKey], int] = {}
    for (hour, key), amount in sums.usage.items():
        day = hour - hour % HOURS_PER_DAY
        days[day, key] = days.get((day, key), 0) + amount
    for (day, key), amount in days.items():
        yield {"hour": day, **key._asdict(), "amount": amount}


def _pieces(reach: Reach) -> Iterator[tuple[Table, int, int]]:
    """(table, first hour, hour before which it ends): whole days are read as days."""
    first_day = -(-reach.first // HOURS_PER_DAY) * HOURS_PER_DAY
    last_day = reach.end // HOURS_PER_DAY * HOURS_PER_DAY
    if reach.bucket == 1 or last_day <= first_day:
        yield USAGE_HOURS, reach.first, reach.end
        return
    yield USAGE_DAYS, first_day, last_day
    for first, end in ((reach.first, first_day), (last_day, reach.end)):
        if first < end:
            yield USAGE_HOURS, first, end


def _usage(table: Table, reach: Reach, first: int, end: int) -> Select[Any]:
    columns = table.c
    keys = (columns.team, columns.project, columns.user, columns.tags)
    query = _summed(table, replace(reach, first=first, end=end), keys, (columns.amount,))
    if reach.teams is None:
        return query
    teams = list(reach.teams)
    mine: list[ColumnElement[bool]] = [columns.team.in_(teams), columns.project.in_(teams)]
    if reach.user:
        mine.append(columns.user == reach.user)
    return query.where(or_(*mine))


def _within(table: Table, reach: Reach) -> ColumnElement[bool]:
    return (table.c.hour >= reach.first) & (table.c.hour < reach.end)


def _summed(
    table: Table,
    reach: Reach,
    keys: tuple[ColumnElement[Any], ...],
    sums: tuple[ColumnElement[Any], ...],
) -> Select[Any]:
    hour = table.c.hour
    groups: tuple[ColumnElement[Any], ...] = keys
    begin: ColumnElement[Any] = literal(reach.first)
    if reach.bucket is not None:
        begin = hour - hour % literal(reach.bucket) if reach.bucket > 1 else hour
        groups = (begin, *keys)
    return (
        select(begin, *keys, *(func.sum(column) for column in sums))
        .where(_within(table, reach))
        .group_by(*groups)
    )
