"""Machines: which ones report, fell silent or were declared dead."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """A table of machines. One that is not in it is as the fleet says."""
    op.create_table(
        "nodes",
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("data", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_nodes"),
    )


def downgrade() -> None:
    """Silence is noticed again; who was declared dead is forgotten."""
    op.drop_table("nodes")
