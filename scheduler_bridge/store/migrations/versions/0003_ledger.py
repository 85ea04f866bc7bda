"""The ledger: GPU time by hour."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

_TEAM_SUMS = (
    "owed",
    "allocated",
    "unallocated",
    "lent",
    "borrowed",
    "guaranteed_unused",
    "guaranteed_lent",
    "on_guarantees",
)


def upgrade() -> None:
    """Sums of usage, of teams and of the fleet, and up to where they count. What happened before is
    not counted."""
    op.create_table(
        "usage_hours",
        sa.Column("hour", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("team", sa.String(255), nullable=False),
        sa.Column("project", sa.String(255), nullable=False),
        sa.Column("user", sa.String(255), nullable=False),
        sa.Column("tags", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("amount", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("hour", "team", "project", "user", "tags", name="pk_usage_hours"),
    )
    op.create_table(
        "team_hours",
        sa.Column("hour", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("team", sa.String(255), nullable=False),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in _TEAM_SUMS),
        sa.PrimaryKeyConstraint("hour", "team", name="pk_team_hours"),
    )
    op.create_table(
        "fleet_hours",
        sa.Column("hour", sa.Integer, autoincrement=False, nullable=False),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in ("capacity", "held", "free")),
        sa.PrimaryKeyConstraint("hour", name="pk_fleet_hours"),
    )
    op.create_table(
        "ledger_mark",
        sa.Column("id", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("event_id", sa.BigInteger, nullable=False),
        sa.Column("gpus", sa.Integer, nullable=False),
        sa.Column("head", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_ledger_mark"),
    )


def downgrade() -> None:
    """The counted time is lost; counting begins anew at the next upgrade."""
    for table in ("ledger_mark", "fleet_hours", "team_hours", "usage_hours"):
        op.drop_table(table)
