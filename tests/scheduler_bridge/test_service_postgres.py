"""The real program on a real PostgreSQL server: killed, cut off from it, taken over."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from sqlalchemy import make_url

from scheduler_bridge.errors import Unavailable
from scheduler_bridge.model.phases import Phase
from scheduler_bridge.store.opening import open_database
from tests.builders.databases import PostgresDatabase
from tests.builders.postgres import PASSWORD, WITH_PASSWORD, PostgresServer
from tests.builders.scheduler import session
from tests.scheduler_bridge.test_service_process import Service, complaint
from tests.scheduler_bridge.test_store_postgres import cut_off


@pytest.fixture
def database(postgres: PostgresServer) -> PostgresDatabase:
    return PostgresDatabase(postgres.database())


@pytest.fixture
async def service(tmp_path: Path, database: PostgresDatabase) -> AsyncIterator[Service]:
    made = Service(tmp_path)
    password = tmp_path / "password"
    password.write_text(PASSWORD)
    url = make_url(database.url).set(username=WITH_PASSWORD).render_as_string()
    made.configure(database_url=url, database_password_file=str(password))
    yield made
    await made.close()


async def test_what_was_asked_for_survives_kill_9(service: Service) -> None:
    await service.start()
    held = await service.client.submit(session("alice", gpus=2), key="a")
    held = await service.phase(held, Phase.STARTING)
    waiting = await service.client.submit(session("bob", gpus=2), key="b")
    service.end(signal.SIGKILL)
    await service.start()
    assert (await service.client.get(held.id)).lease is not None
    assert (await service.client.get(waiting.id)).phase is Phase.QUEUED
    assert set((await service.client.fleet()).holders.values()) == {held.id}


async def test_a_server_that_restarts_is_a_pause_and_no_end(
    service: Service, postgres: PostgresServer
) -> None:
    await service.start()
    first = await service.client.submit(session("alice"), key="a")
    await service.phase(first, Phase.STARTING)
    postgres.stop("immediate")
    try:
        with pytest.raises(Unavailable, match="could not save"):
            await service.client.submit(session("bob"), key="b")
        with pytest.raises(Unavailable, match="database does not answer"):
            await service.client.history(first.id)
        async with httpx.AsyncClient() as raw:
            answer = await raw.get(f"{service.url}/readyz")
        assert answer.status_code == 503 and "database does not answer" in answer.text
    finally:
        postgres.start()
    second = await service.client.submit(session("bob"), key="b")
    await service.phase(second, Phase.STARTING)
    assert [e.kind for e in await service.client.history(first.id)][:1] == ["submitted"]


async def test_a_second_scheduler_is_refused_and_the_first_goes_on(service: Service) -> None:
    await service.start()
    assert service.process is not None
    said = complaint(service, "--port=0")
    assert "Another scheduler (hubernate " in said and f" {service.process.pid} " in said
    await service.client.submit(session("alice"), key="a")


async def test_who_was_taken_over_ends_and_says_so(
    service: Service, database: PostgresDatabase
) -> None:
    await service.start()
    cut_off(database)
    with closing(open_database(database.url)):
        with pytest.raises(Unavailable):
            await service.client.submit(session("alice"), key="a")
        assert service.process is not None and service.process.wait(30) == 1
    assert "Another scheduler (hubernate " in service.log()


async def test_the_password_is_seen_nowhere(service: Service) -> None:
    await service.start()
    workload = await service.client.submit(session(), key="s")
    await service.phase(workload, Phase.STARTING)
    assert service.process is not None
    process = Path("/proc") / str(service.process.pid)
    seen = [process.joinpath("cmdline").read_bytes(), process.joinpath("environ").read_bytes()]
    service.end(signal.SIGTERM)
    assert PASSWORD.encode() not in b"".join(seen)
    assert PASSWORD not in service.log()
