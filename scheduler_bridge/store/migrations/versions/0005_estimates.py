"""Estimates that were given, and what came of them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

_SERIAL = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """A table of what was told to whom."""
    op.create_table(
        "estimates",
        sa.Column("number", _SERIAL, autoincrement=True, nullable=False),
        sa.Column("workload_id", sa.String(64), nullable=False),
        sa.Column("given_at", sa.Float, nullable=False),
        sa.Column("basis", sa.String(32), nullable=False),
        sa.Column("probability", sa.Float, nullable=False),
        sa.Column("earliest", sa.Float),
        sa.Column("latest", sa.Float),
        sa.Column("fate", sa.String(16), nullable=False),
        sa.Column("settled_at", sa.Float),
        sa.PrimaryKeyConstraint("number", name="pk_estimates"),
    )
    op.create_index("ix_estimates_given_at", "estimates", ["given_at"])
    op.create_index("ix_estimates_fate", "estimates", ["fate"])


def downgrade() -> None:
    """How well estimates came true is measured anew."""
    op.drop_table("estimates")
