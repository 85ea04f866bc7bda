"""The first schema. Later ones never edit this file."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_SERIAL = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_WORD = sa.String(32).with_variant(sa.String(255), "postgresql")


def upgrade() -> None:
    """Workloads, leases, held GPUs, events, pauses, earmarks."""
    op.create_table(
        "workloads",
        sa.Column("number", _SERIAL, autoincrement=True, nullable=False),
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("live_key", sa.String(512)),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("user", sa.String(255), nullable=False),
        sa.Column("data", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_workloads"),
        sa.UniqueConstraint("id", name="uq_workloads_id"),
        sa.UniqueConstraint("live_key", name="uq_workloads_live_key"),
    )
    op.create_index("ix_workloads_user", "workloads", ["user"])
    op.create_table(
        "leases",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("workload_id", sa.String(64), nullable=False),
        sa.Column("released_at", sa.Float),
        sa.Column("data", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_leases"),
    )
    op.create_index("ix_leases_workload_id", "leases", ["workload_id"])
    op.create_index("ix_leases_released_at", "leases", ["released_at"])
    op.create_table(
        "held_gpus",
        sa.Column("gpu_uuid", sa.String(128), nullable=False),
        sa.Column("lease_id", sa.String(64), nullable=False),
        sa.ForeignKeyConstraint(["lease_id"], ["leases.id"], name="fk_held_gpus_lease_id"),
        sa.PrimaryKeyConstraint("gpu_uuid", name="pk_held_gpus"),
    )
    op.create_index("ix_held_gpus_lease_id", "held_gpus", ["lease_id"])
    op.create_table(
        "events",
        sa.Column("id", _SERIAL, autoincrement=True, nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("workload_id", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(64), nullable=False),
        sa.Column("cause", sa.Text, nullable=False),
        sa.Column("actor", sa.String(255), nullable=False),
        sa.Column("user", sa.String(255), nullable=False),
        sa.Column("source", _WORD, nullable=False),
        sa.Column("target", _WORD, nullable=False),
        sa.Column("evidence", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_events"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_events_workload_id", "events", ["workload_id"])
    op.create_table(
        "pauses",
        sa.Column("scope", sa.String(32), nullable=False),
        sa.Column("data", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("scope", name="pk_pauses"),
    )
    op.create_table(
        "earmarks",
        sa.Column("gpu_uuid", sa.String(128), nullable=False),
        sa.Column("workload_id", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("gpu_uuid", name="pk_earmarks"),
    )
    _keep_events_append_only()


def _keep_events_append_only() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            "CREATE FUNCTION events_are_append_only() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'events are append-only'; END $$"
        )
        op.execute(
            "CREATE TRIGGER events_only_grow BEFORE UPDATE OR DELETE OR TRUNCATE ON events "
            "FOR EACH STATEMENT EXECUTE FUNCTION events_are_append_only()"
        )
        return
    for verb in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER events_no_{verb.lower()} BEFORE {verb} ON events "
            "BEGIN SELECT RAISE(ABORT, 'events are append-only'); END"
        )
