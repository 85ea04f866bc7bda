"""Images put right before CRIU reads them, and the library that keeps its groups."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from snapshot import groups, images, revision, watches
from snapshot.pins import Pin

INTERRUPTED = 2**64 - 4
POLL, EPOLL_WAIT, NANOSLEEP = 7, 232, 35


def numbers(**values: int) -> bytes:
    """A message of numbers; names are `f` and the field's number."""
    return images.encode((int(name[1:]), 0, value) for name, value in values.items())


def message(number: int, content: bytes) -> bytes:
    return images.encode([(number, 2, content)])


def fields(record: bytes) -> dict[int, int | bytes]:
    return {number: value for number, _, value in images.decode(record)}


def core(call: int, result: int) -> bytes:
    registers = numbers(f11=result, f16=call, f17=1000)
    return images.join(1, [numbers(f1=1) + message(2, numbers(f1=5) + message(2, registers))])


def registers_of(data: bytes) -> dict[int, int | bytes]:
    record = fields(images.split(data)[1][0])
    assert isinstance(record[2], bytes)
    info = fields(record[2])
    assert isinstance(info[2], bytes)
    return fields(info[2])


def test_an_interrupted_poll_is_called_again() -> None:
    found = registers_of(revision.revised("core-1.img", core(POLL, INTERRUPTED)))
    assert (found[11], found[16], found[17]) == (POLL, POLL, 998)


@pytest.mark.parametrize(
    ("call", "result"), [(POLL, 1), (EPOLL_WAIT, INTERRUPTED), (NANOSLEEP, INTERRUPTED)]
)
def test_every_other_call_ends_as_it_did(call: int, result: int) -> None:
    assert revision.revised("core-1.img", core(call, result)) == core(call, result)


def test_what_a_connection_has_not_sent_counts_as_sent_and_the_queues_stay() -> None:
    queues = os.urandom(500)
    before = images.join(7, [numbers(f1=100, f3=400, f12=250, f13=9)])
    after = revision.revised("tcp-stream-1f.img", before + queues)
    assert after.endswith(queues)
    _, (record,) = images.split(after.removesuffix(queues))
    assert fields(record) == {1: 100, 3: 400, 12: 0, 13: 9}


def timer(ticks: int, left: int, every: int) -> bytes:
    entry = numbers(f1=1, f5=ticks, f7=left, f8=0, f9=0, f10=every)
    return images.join(3, [numbers(f1=12, f2=1) + message(12, entry)])


def left_of(data: bytes) -> object:
    entry = fields(images.split(data)[1][0])[12]
    assert isinstance(entry, bytes)
    return fields(entry)[8]


def test_a_periodic_timer_that_went_off_unseen_goes_on() -> None:
    assert left_of(revision.revised("files.img", timer(1, 0, 50))) == 1


@pytest.mark.parametrize("still", [timer(0, 0, 50), timer(1, 0, 0), timer(1, 3, 50)])
def test_timers_that_are_off_or_have_time_left_stay_so(still: bytes) -> None:
    assert revision.revised("files.img", still) == still


def test_permissions_of_open_files_are_not_compared() -> None:
    def files(*mode: int) -> bytes:
        file = (
            numbers(f1=4, f2=2) + message(6, b"home/alice") + b"".join(numbers(f10=m) for m in mode)
        )
        return images.join(3, [numbers(f1=1, f2=4) + message(3, file)])

    assert revision.revised("files.img", files(0o40700)) == files()


def test_an_image_cut_short_is_refused() -> None:
    with pytest.raises(images.ImageError):
        revision.revised("tcp-stream-1.img", b"short")


def watched(inode: int, path: str) -> bytes:
    handle = numbers(f1=8, f2=1) + message(4, path.encode())
    watch = numbers(f1=3, f2=inode, f6=1) + message(7, handle)
    return images.join(3, [numbers(f1=6, f2=3) + message(13, numbers(f1=3) + message(5, watch))])


PIN = Pin(7, "/home/alice/log", 1, 42, 0, 0, 0, 0, 0, "link")


def test_a_watch_by_an_earlier_freezes_name_follows_its_file() -> None:
    data = watched(42, "/.pins/1-1/9")
    (held,) = watches.to_hold(data)
    assert held.name == "/.pins/1-1/9"
    assert watches.adapt(data, [PIN], {}, lambda _: True) == (watched(42, PIN.name), ())
    moved = {7: images.Change(name="/.pins/1-2/7")}
    assert watches.adapt(data, [PIN], moved, lambda _: True)[0] == watched(42, "/.pins/1-2/7")


def test_a_watch_by_its_own_name_stays() -> None:
    data = watched(42, "/home/alice/other")
    assert watches.to_hold(data) == ()
    assert watches.adapt(data, [replace(PIN, name="/x")], {}, lambda _: True) == (data, ())


def test_a_watch_on_what_is_gone_is_left_out_and_told() -> None:
    data, notes = watches.adapt(watched(42, "/home/alice/gone"), [], {}, lambda _: False)
    assert b"gone" not in data and "/home/alice/gone" in notes[0]


def test_the_group_ids_of_a_tree_are_read_from_its_user_namespace() -> None:
    def extent(first: int) -> bytes:
        return numbers(f1=first, f2=first, f3=1)

    record = message(1, extent(210_001)) + message(2, extent(0)) + message(2, extent(210_900))
    assert groups.known(images.join(3, [record])) == {0, 210_900}


ASK = "import os; os.setgroups([]); print(os.getgroups()); os.setgroups([5]); print(os.getgroups())"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may change groups")
def test_asked_for_no_groups_the_library_takes_the_sessions(tmp_path: Path) -> None:
    library = tmp_path / "groups.so"
    library.write_bytes(groups.library([210_001, 210_900]))
    said = subprocess.run(
        [sys.executable, "-c", ASK],
        env={"LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.splitlines() == ["[210001, 210900]", "[5]"]
    assert said.stderr == ""


def test_the_library_is_one_that_can_be_loaded(tmp_path: Path) -> None:
    library = tmp_path / "groups.so"
    library.write_bytes(groups.library(range(200)))
    assert ctypes.CDLL(str(library)).setgroups
    with pytest.raises(ValueError, match="too many"):
        groups.library(range(5000))
