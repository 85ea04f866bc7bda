"""GPU time by day, so that a report of months need not read hours."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """A table of days, filled from the hours."""
    op.create_table(
        "usage_days",
        sa.Column("hour", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("team", sa.String(255), nullable=False),
        sa.Column("project", sa.String(255), nullable=False),
        sa.Column("user", sa.String(255), nullable=False),
        sa.Column("tags", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("amount", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("hour", "team", "project", "user", "tags", name="pk_usage_days"),
    )
    op.execute(
        'INSERT INTO usage_days (hour, team, project, "user", tags, amount) '
        'SELECT hour - hour % 24, team, project, "user", tags, sum(amount) FROM usage_hours '
        'GROUP BY hour - hour % 24, team, project, "user", tags'
    )


def downgrade() -> None:
    """Nothing is lost: the hours have all of it."""
    op.drop_table("usage_days")
