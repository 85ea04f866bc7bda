"""Change sets of the teams' budgets."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_SERIAL = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_FUNCTION = "team_changes_are_append_only"
_TRIGGER = "team_changes_only_grow"
_WORDS = "team_changes are append-only"


def upgrade() -> None:
    """A table that only grows: what was changed is never forgotten."""
    op.create_table(
        "team_changes",
        sa.Column("number", _SERIAL, autoincrement=True, nullable=False),
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("based_on", sa.String(64), nullable=False),
        sa.Column("data", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_team_changes"),
        sa.UniqueConstraint("id", name="uq_team_changes_id"),
        sa.UniqueConstraint("based_on", name="uq_team_changes_based_on"),
    )
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            f"CREATE FUNCTION {_FUNCTION}() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN RAISE EXCEPTION '{_WORDS}'; END $$"
        )
        op.execute(
            f"CREATE TRIGGER {_TRIGGER} BEFORE UPDATE OR DELETE OR TRUNCATE ON team_changes "
            f"FOR EACH STATEMENT EXECUTE FUNCTION {_FUNCTION}()"
        )
        return
    for verb in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER team_changes_no_{verb.lower()} BEFORE {verb} ON team_changes "
            f"BEGIN SELECT RAISE(ABORT, '{_WORDS}'); END"
        )


def downgrade() -> None:
    """Budgets are lost; the settings' limits remain."""
    op.drop_table("team_changes")
    if op.get_bind().dialect.name == "postgresql":
        op.execute(f"DROP FUNCTION {_FUNCTION}()")
