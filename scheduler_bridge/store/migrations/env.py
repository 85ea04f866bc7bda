"""Alembic's entry. The connection comes from `store.opening`; there is no offline mode."""

from __future__ import annotations

from alembic import context

from scheduler_bridge.store.tables import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
