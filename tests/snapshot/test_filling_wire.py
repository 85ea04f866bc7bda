"""Messages, the journal and the working set: what the holders of a filling tell each other."""

from __future__ import annotations

import json
import os
import resource
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from snapshot.filling import lazy, program, wire
from snapshot.filling.journal import Journal, Record
from snapshot.filling.territory import BLOCK, layout
from snapshot.filling.uffd import Event, Message
from snapshot.images import (
    PAGE,
    Pagemap,
    PagemapEntry,
    encode,
    join,
    pagemap_name,
    read_pagemap,
    write_pagemap,
)
from snapshot.reader import Snapshot
from tests.builders.snapshots import key, repository, save
from tests.fakes.stores import StoreInMemory

Ends = tuple[socket.socket, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    near, far = wire.pair()
    with near, far:
        yield near, far


def received(sock: socket.socket) -> tuple[wire.Message, tuple[int, ...]]:
    found = wire.receive(sock)
    assert found is not None
    return found


def test_a_message_arrives_with_its_descriptors(ends: Ends) -> None:
    near, far = ends
    reading, writing = os.pipe()
    wire.send(near, {"is": "hold", "number": 7}, [reading, writing])
    message, descriptors = received(far)
    assert message == {"is": "hold", "number": 7}
    os.write(descriptors[1], b"x")
    assert os.read(reading, 1) == b"x"
    assert all(not os.get_inheritable(each) for each in descriptors)
    for each in (reading, writing, *descriptors):
        os.close(each)


def test_messages_stay_apart(ends: Ends) -> None:
    near, far = ends
    for number in range(3):
        wire.send(near, {"number": number})
    assert [received(far)[0]["number"] for _ in range(3)] == [0, 1, 2]


def test_the_end_comes_after_what_was_sent(ends: Ends) -> None:
    near, far = ends
    wire.send(near, {"is": "last"})
    near.close()
    assert received(far)[0] == {"is": "last"}
    assert wire.receive(far) is None


def test_nothing_that_was_sent_is_lost_because_the_sender_had_not_read(ends: Ends) -> None:
    """The kernel reports such a sender's end before its messages."""
    near, far = ends
    wire.send(far, {"is": "never read"})
    wire.send(near, {"is": "held"})
    near.close()
    assert received(far)[0] == {"is": "held"}
    assert wire.receive(far) is None


def test_an_empty_socket_that_does_not_wait_says_so(ends: Ends) -> None:
    ends[0].setblocking(False)
    with pytest.raises(BlockingIOError):
        wire.receive(ends[0])


def test_telling_one_that_is_gone_is_an_error(ends: Ends) -> None:
    ends[1].close()
    with pytest.raises(OSError, match="pipe"):
        wire.send(ends[0], {"is": "go"})


def test_a_descriptor_that_there_was_no_room_for_is_an_error_not_a_gap(ends: Ends) -> None:
    near, far = ends
    wire.send(near, {"is": "hold"}, [0, 1, 2])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 1, hard))
    try:
        with pytest.raises(OSError, match="descriptors"):
            wire.receive(far)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert os.dup(0) == lowest  # the one that came is closed again
    os.close(lowest)


@pytest.fixture
def journal() -> Iterator[Journal]:
    made = Journal.create()
    yield made
    made.close()


def test_a_journal_keeps_events_in_their_order_and_grows(journal: Journal) -> None:
    wanted = [Record(n % 3, Message(Event.UNMAP, n, n + 1, 2**47)) for n in range(7000)]
    successor = Journal(os.dup(journal.descriptor))  # has mapped it before it grew
    for record in wanted:
        with journal.reading():
            journal.add(*record)
    assert list(successor) == wanted
    assert not successor.is_torn
    successor.close()


def test_a_journal_whose_writer_failed_in_the_middle_is_torn(journal: Journal) -> None:
    other = Journal(os.dup(journal.descriptor))
    with pytest.raises(OSError, match="gone"), journal.reading():
        assert other.is_torn
        raise OSError("gone")
    assert other.is_torn
    other.close()


def test_a_journal_can_be_continued_by_a_successor(journal: Journal) -> None:
    with journal.reading():
        journal.add(0, Message(Event.REMOVE, 0, PAGE, 0))
    successor = Journal(os.dup(journal.descriptor))
    with successor.reading():
        successor.add(1, Message(Event.REMAP, 1, 2, 3))
    assert [record.territory for record in journal] == [0, 1]
    successor.close()


LAZY, EAGER = 6, 4


def entry(address: int, pages: int, flags: int) -> PagemapEntry:
    return PagemapEntry(address, pages, flags)


def test_what_criu_gets_is_complete_in_itself() -> None:
    entries = (
        entry(0x1000, 2, EAGER),
        entry(0x10000, 20, LAZY),
        entry(0x40000, 3, 2),  # lazy, and not there: nothing comes
        entry(0x50000, 1, EAGER),
    )
    left = lazy.eager_part(Pagemap(1, entries))
    assert left == Pagemap(1, (entries[0], entries[2], entries[3]))
    assert left.file_bytes() == 3 * PAGE


def mappings(*wiped: tuple[int, int]) -> bytes:
    """An `mm-N.img` with an ordinary mapping, and these, which children find empty."""
    made = [encode([(1, 0, 0), (2, 0, 2**46), (9, 0, 1 << 16)])]
    made += [encode([(1, 0, start), (2, 0, end), (9, 0, 1 << 18)]) for start, end in wiped]
    return join(0x57492820, [encode([(1, 0, 0), *((14, 2, each) for each in made)])])


def test_what_children_find_empty_does_not_come_later(tmp_path: Path) -> None:
    """A page that comes to a child after its fork would be its parent's."""
    middle = 2**20 + 10 * PAGE
    mm = mappings((middle, middle + 3 * PAGE), (middle + 3 * PAGE, middle + 4 * PAGE))
    where = lazy.read_layout(stored(tmp_path, {**pagemaps("task"), "mm-1.img": mm}))
    assert where == layout([("task", 1, [(2**20, 10), (middle + 4 * PAGE, 26)])])
    whole = read_pagemap(pagemaps("task")["pagemap-1.img"])
    left = lazy.eager_part(whole, lazy.wiped_in({"mm-1.img": mm}, 1))
    assert left.file_bytes() == 5 * PAGE
    assert [each.vaddr for each in left.entries] == [PAGE, middle, middle + 3 * PAGE]


def stored(folder: Path, files: Mapping[str, bytes]) -> Snapshot:
    made = repository(StoreInMemory(), folder)
    return made.open(save(made, key(), {}, files).manifest)


def pagemaps(*kinds: str) -> dict[str, bytes]:
    """One pagemap each, all with the same 40 lazy pages at 1 MiB, numbered from 1."""
    made = Pagemap(1, (entry(PAGE, 1, EAGER), entry(2**20, 40, LAZY)))
    return {pagemap_name(kind, n + 1): write_pagemap(made) for n, kind in enumerate(kinds)}


def test_only_the_memory_of_tasks_comes_later(tmp_path: Path) -> None:
    where = lazy.read_layout(stored(tmp_path, pagemaps("task", "shmem", "task")))
    assert where == layout([("task", 1, [(2**20, 40)]), ("task", 3, [(2**20, 40)])])


def test_a_working_set_is_found_again_whatever_the_numbers_are(tmp_path: Path) -> None:
    """Recorded in one resume, read in the next, where another task comes first."""
    before = layout([("task", 3, [(2**20, 40)])])
    content = lazy.write_working_set(before, [2, 0], [1, 2])
    files = {**pagemaps("task", "task", "task"), lazy.WORKING_SET_FILE: content}
    snapshot = stored(tmp_path, files)
    now = lazy.read_layout(snapshot)
    first = now.spaces[2].base // BLOCK
    assert lazy.read_working_set(snapshot, now) == (first + 2, first, first + 1)


def test_what_is_not_there_any_more_is_left_out_of_a_working_set(tmp_path: Path) -> None:
    content = json.dumps([[9, 2**20], [1, 0], [1, 2**20 + 40 * PAGE], [1, 2**20]]).encode()
    snapshot = stored(tmp_path, {**pagemaps("task"), lazy.WORKING_SET_FILE: content})
    assert lazy.read_working_set(snapshot, lazy.read_layout(snapshot)) == (0,)
    plain = stored(tmp_path / "other", pagemaps("task"))
    assert lazy.read_working_set(plain, lazy.read_layout(plain)) == ()


def test_a_working_set_is_bounded_and_forgets_the_oldest() -> None:
    where = layout([("task", 1, [(2**20, BLOCK * 2 * lazy.MOST_BLOCKS)])])
    new = range(lazy.MOST_BLOCKS, 2 * lazy.MOST_BLOCKS)
    kept = json.loads(lazy.write_working_set(where, new, [0, 1]))
    assert len(kept) == lazy.MOST_BLOCKS
    assert [1, 2**20] not in kept


def test_a_working_set_is_for_root_only(tmp_path: Path) -> None:
    """It says where programs have their memory."""
    place = tmp_path / "working-set.json"
    for content in (b"[]", b"[[1, 4096]]"):
        program._keep(place, content)
        assert place.read_bytes() == content
        assert place.stat().st_mode & 0o777 == 0o600
