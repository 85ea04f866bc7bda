"""What several files of these tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.builders.postgres import PostgresServer, postgres_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server
