"""An event that was read and could not be written down: nobody goes on with what he knows then."""

from __future__ import annotations

import contextlib
import errno
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from snapshot.filling import journal as journals
from snapshot.filling import wire
from snapshot.filling.filler import Filler, FillOrder, Held, Links
from snapshot.filling.journal import Journal, TornError
from snapshot.filling.territory import layout
from snapshot.filling.uffd import Event, Message
from snapshot.images import PAGE
from tests.builders.snapshots import key, repository, save
from tests.fakes.stores import StoreInMemory

START = 0x20000


class JournalWithoutRoom(Journal):
    """What is read cannot be written down."""

    def add(self, territory: int, message: Message) -> None:
        raise OSError(errno.ENOSPC, "no room")


@pytest.fixture
def filler(tmp_path: Path) -> Iterator[Filler]:
    """One whose tree has just given memory up, which its userfaultfd (here a pipe) tells."""
    store = StoreInMemory()
    memory = {("task", 1): [(START, b"x" * PAGE)]}
    manifest = save(repository(store, tmp_path), key(), memory).manifest
    snapshot = repository(store, tmp_path).open(manifest)
    supervisor, guard, made = wire.pair(), wire.pair(), JournalWithoutRoom.create()
    order = FillOrder(layout([("task", 1, [(START, 1)])]), tmp_path)
    filler = Filler(order, snapshot, made, Links(supervisor[0], guard[0]))
    reading, writing = os.pipe2(os.O_NONBLOCK)
    os.write(writing, struct.pack("<B7xQQQ", Event.REMOVE, START, START + PAGE, 0))
    filler.hold(Held(0, 1, reading))
    yield filler
    made.close()
    for sock in (*supervisor, *guard):
        sock.close()
    for descriptor in (reading, writing):
        os.close(descriptor)


def test_a_filler_that_lost_an_event_puts_nothing_anywhere(filler: Filler) -> None:
    """Whichever of its threads lost it, and although that one tries again for ever."""
    (family,) = filler._families.values()
    with contextlib.suppress(OSError):
        family.drain(0)
    with pytest.raises(TornError):
        family.fill_zeros(0, 1)
    with pytest.raises(TornError):
        filler.run()


def test_a_task_that_nobody_can_reach_ends_the_filling(tmp_path: Path) -> None:
    """It would read zeros when all others have their memory."""
    memory = {("task", n): [(START, b"x" * PAGE)] for n in (1, 2)}
    made = repository(StoreInMemory(), tmp_path)
    snapshot = made.open(save(made, key(), memory).manifest)
    where = layout([("task", n, [(START, 1)]) for n in (1, 2)])
    (near, far), guard, journal = wire.pair(), wire.pair(), Journal.create()
    filler = Filler(FillOrder(where, tmp_path), snapshot, journal, Links(far, guard[0]))
    reading, writing = os.pipe2(os.O_NONBLOCK)
    filler.hold(Held(0, 2, reading))
    wire.send(near, {"is": "go"})
    with pytest.raises(TornError, match=r"\[1\]"):
        filler.run()
    assert journal.is_torn
    journal.close()
    for sock in (near, far, *guard):
        sock.close()
    for descriptor in (reading, writing):
        os.close(descriptor)


def test_a_journal_that_failed_is_torn_for_ever() -> None:
    journal = JournalWithoutRoom.create()
    with pytest.raises(OSError, match="no room"), journal.reading():
        journal.add(0, Message(Event.REMOVE, 0, PAGE, 0))
    with pytest.raises(TornError), journal.reading():
        raise AssertionError("it went on")
    assert journal.is_torn
    journal.close()


def test_a_journal_has_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "MOST_RECORDS", 3)
    journal = Journal.create()
    message = Message(Event.REMAP, 0, PAGE, PAGE)
    with journal.reading():
        for _ in range(3):
            journal.add(0, message)
    with pytest.raises(OSError, match="too often"), journal.reading():
        journal.add(0, message)
    journal.close()
