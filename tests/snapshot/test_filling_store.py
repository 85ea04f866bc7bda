"""Memory that comes from the real S3 server, which is killed, stopped, slow, or reached over ways
that fail: the program waits, somebody is told why, and it reads what it should."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from snapshot.filling import feed
from snapshot.stores.base import Store
from snapshot.stores.retry import Patience, RetryingStore
from snapshot.stores.s3 import S3Store
from tests.builders.faulting import Faulting, faulting
from tests.builders.s3 import S3Server, running_s3_server, s3_server
from tests.fakes.relays import slow_relay
from tests.fakes.wires import (
    WireForSome,
    WireThatCutsBodies,
    WireThatFlipsABit,
    WireThatLosesTheAcknowledgement,
    WireThatRefuses,
    WireThatSaysNotNow,
)

__all__ = ["s3_server"]

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="userfaultfds here need root")
SHORT = Patience(total=0.2, first=0.01, longest=0.05)
LONG = Patience(first=0.01, longest=0.05)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asks again sooner, and speaks up sooner, than people need it."""
    monkeypatch.setattr(feed, "RETRY_SECONDS", 0.1)
    monkeypatch.setattr(feed, "SILENT_SECONDS", 1.0)


def on(
    server: S3Server, endpoint: str = "", patience: Patience = SHORT
) -> Callable[[Store], Store]:
    """Put what a store holds onto the server, and read it from there, or over another endpoint."""

    def moved(store: Store) -> Store:
        settings = server.settings(f"test-{uuid.uuid4().hex[:16]}")
        there = S3Store(settings)
        there.create_bucket()
        for entry in store.list(""):
            there.put(entry.key, store.get(entry.key))
        reached = S3Store(replace(settings, endpoint=endpoint or settings.endpoint))
        return RetryingStore(reached, patience)

    return moved


@contextmanager
def asking(folder: Path, wrap: Callable[[Store], Store], pages: int = 1000) -> Iterator[Faulting]:
    """A program in the middle of reading its memory: some of it has been asked for."""
    with faulting(folder, "plain", wrap=wrap, pages=pages) as tree:
        tree.program.send_on()
        yield tree


def test_a_server_that_is_killed_and_started_again(tmp_path: Path) -> None:
    with running_s3_server(tmp_path) as server, asking(tmp_path, on(server)) as tree:
        tree.until_asked_for(1)
        server.kill()
        tree.go()
        tree.supervisor.hears(lambda news: "cannot be reached" in news.get("trouble", ""))
        assert tree.filler.remaining > 0
        with running_s3_server(tmp_path, again=server):
            tree.ends()


def test_a_server_that_stands_still_for_a_while(tmp_path: Path) -> None:
    with running_s3_server(tmp_path) as server, asking(tmp_path, on(server)) as tree:
        tree.until_asked_for(1)
        os.kill(server.pid, signal.SIGSTOP)
        try:
            tree.go()
            tree.supervisor.hears(lambda news: "sent nothing" in news.get("trouble", ""))
            assert tree.filler.remaining > 0
        finally:
            os.kill(server.pid, signal.SIGCONT)
        tree.ends()


def test_a_megabyte_a_second_is_slow_and_shown_and_nothing_else(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "SILENT_SECONDS", 10.0)
    with (
        slow_relay(s3_server.endpoint, bytes_per_second=1e6) as endpoint,
        asking(tmp_path, on(s3_server, endpoint), pages=300) as tree,
    ):
        tree.go()
        tree.ends()
    news = [each for each in tree.supervisor.heard if each["is"] == "progress"]
    left = [each["remaining"] for each in news]
    assert left == sorted(left, reverse=True)
    assert len(set(left)) > 3
    assert {each["trouble"] for each in news} == {""}


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (WireThatSaysNotNow, "SlowDown"),
        (WireThatRefuses, "AccessDenied"),
        (WireThatLosesTheAcknowledgement, "cannot be reached"),
        (WireThatCutsBodies, "cannot be reached"),
        (WireThatFlipsABit, "damaged"),
    ],
)
def test_what_fails_on_the_way_is_named_and_never_enters_memory(
    s3_server: S3Server, tmp_path: Path, kind: type[WireForSome], words: str
) -> None:
    wire = kind(s3_server, method="GET", times=10**9)
    with wire.running(), asking(tmp_path, on(s3_server, wire.endpoint)) as tree:
        tree.go()
        tree.supervisor.hears(lambda news: words in news.get("trouble", ""))
        assert tree.filler.remaining > 0
        wire.times = 0
        tree.ends()


@pytest.mark.parametrize(
    "kind", [WireThatSaysNotNow, WireThatLosesTheAcknowledgement, WireThatCutsBodies]
)
def test_a_burst_of_failures_only_takes_time(
    s3_server: S3Server, tmp_path: Path, kind: type[WireForSome]
) -> None:
    wire = kind(s3_server, method="GET", times=8)
    with wire.running(), asking(tmp_path, on(s3_server, wire.endpoint, LONG)) as tree:
        tree.go()
        tree.ends()
    assert wire.failed == 8
    assert {each["trouble"] for each in tree.supervisor.heard if each["is"] == "progress"} <= {""}
