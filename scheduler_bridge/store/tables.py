"""Tables. A record is kept whole as JSON beside the few columns that are searched or constrained,
so that a new field is declared once, in the model."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
)

from scheduler_bridge.model.usage import FleetSums, TeamSums

METADATA = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)
_SERIAL = BigInteger().with_variant(Integer, "sqlite")
_WORD = String(32).with_variant(String(255), "postgresql")
"""SQLite keeps no limit: what was written there may be longer."""
_NAME = String(255)

WORKLOADS = Table(
    "workloads",
    METADATA,
    Column("number", _SERIAL, primary_key=True, autoincrement=True),
    Column("id", String(64), nullable=False, unique=True),
    # the key while the workload lives, then NULL: a second live one of the same key cannot exist
    Column("live_key", String(512), unique=True),
    Column("kind", String(16), nullable=False),
    Column("user", String(255), nullable=False),
    Column("data", JSON, nullable=False),
    Index("ix_workloads_user", "user"),
)

LEASES = Table(
    "leases",
    METADATA,
    Column("id", String(64), primary_key=True),
    Column("workload_id", String(64), nullable=False, index=True),
    Column("released_at", Float, index=True),
    Column("data", JSON, nullable=False),
)

HELD_GPUS = Table(
    "held_gpus",
    METADATA,
    # the primary key is the promise that a GPU is never given twice
    Column("gpu_uuid", String(128), primary_key=True),
    Column("lease_id", String(64), ForeignKey("leases.id"), nullable=False, index=True),
)

EVENTS = Table(
    "events",
    METADATA,
    Column("id", _SERIAL, primary_key=True, autoincrement=True),
    Column("at", Float, nullable=False),
    Column("workload_id", String(64), nullable=False, index=True),
    Column("kind", String(64), nullable=False),
    Column("cause", Text, nullable=False),
    Column("actor", String(255), nullable=False),
    Column("user", String(255), nullable=False),
    Column("source", _WORD, nullable=False),
    Column("target", _WORD, nullable=False),
    Column("evidence", JSON, nullable=False),
    sqlite_autoincrement=True,
)

PAUSES = Table(
    "pauses",
    METADATA,
    Column("scope", String(32), primary_key=True),
    Column("data", JSON, nullable=False),
)

TEAM_CHANGES = Table(
    "team_changes",
    METADATA,
    Column("number", _SERIAL, primary_key=True, autoincrement=True),
    Column("id", String(64), nullable=False, unique=True),
    # two change sets cannot follow the same one: nobody overwrites what they have not seen
    Column("based_on", String(64), nullable=False, unique=True),
    Column("data", JSON, nullable=False),
)

NODES = Table(
    "nodes",
    METADATA,
    Column("name", String(255), primary_key=True),
    Column("data", JSON, nullable=False),
)

EARMARKS = Table(
    "earmarks",
    METADATA,
    Column("gpu_uuid", String(128), primary_key=True),
    Column("workload_id", String(64), nullable=False),
)

USAGE_HOURS = Table(
    "usage_hours",
    METADATA,
    Column("hour", Integer, primary_key=True, autoincrement=False),
    Column("team", _NAME, primary_key=True),
    Column("project", _NAME, primary_key=True),
    Column("user", _NAME, primary_key=True),
    Column("tags", Integer, primary_key=True, autoincrement=False),
    Column("amount", BigInteger, nullable=False),
)

USAGE_DAYS = Table(
    "usage_days",
    METADATA,
    # the first hour of the day; a report of months reads these
    Column("hour", Integer, primary_key=True, autoincrement=False),
    Column("team", _NAME, primary_key=True),
    Column("project", _NAME, primary_key=True),
    Column("user", _NAME, primary_key=True),
    Column("tags", Integer, primary_key=True, autoincrement=False),
    Column("amount", BigInteger, nullable=False),
)

TEAM_HOURS = Table(
    "team_hours",
    METADATA,
    Column("hour", Integer, primary_key=True, autoincrement=False),
    Column("team", _NAME, primary_key=True),
    *(Column(name, BigInteger, nullable=False) for name in TeamSums._fields),
)

FLEET_HOURS = Table(
    "fleet_hours",
    METADATA,
    Column("hour", Integer, primary_key=True, autoincrement=False),
    *(Column(name, BigInteger, nullable=False) for name in FleetSums._fields),
)

LEDGER_MARK = Table(
    "ledger_mark",
    METADATA,
    # there is one row, so that a write can demand what stands in it
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("number", BigInteger, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("event_id", BigInteger, nullable=False),
    Column("gpus", Integer, nullable=False),
    Column("head", String(64), nullable=False),
)

ESTIMATES = Table(
    "estimates",
    METADATA,
    Column("number", _SERIAL, primary_key=True, autoincrement=True),
    Column("workload_id", String(64), nullable=False),
    Column("given_at", Float, nullable=False, index=True),
    Column("basis", String(32), nullable=False),
    Column("probability", Float, nullable=False),
    Column("earliest", Float),
    Column("latest", Float),
    Column("fate", String(16), nullable=False, index=True),
    Column("settled_at", Float),
)
