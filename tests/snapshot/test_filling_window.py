"""The host's setting is raised for the time of a restore, and put back whatever happens."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from snapshot.filling import window

FORK = multiprocessing.get_context("fork")
DEADLINE = 10.0


@pytest.fixture
def setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file in place of the kernel's, so that no restore beside these tests is disturbed."""
    path = tmp_path / "setting"
    path.write_text("0\n")
    monkeypatch.setattr(window, "SETTING", path)
    monkeypatch.setattr(window, "LOCK", tmp_path / "lock")
    yield path


def _inside(pipe: Connection) -> None:
    with window.allowed():
        pipe.send("in")
        pipe.recv()
    pipe.send("out")


class Restore:
    """A process that is in the window until it is told to leave."""

    def __init__(self) -> None:
        self.pipe, there = FORK.Pipe()
        self.process = FORK.Process(target=_inside, args=(there,))
        self.process.start()
        there.close()

    def hears(self, word: str) -> None:
        assert self.pipe.poll(DEADLINE), f"nobody said {word!r}"
        assert self.pipe.recv() == word

    def leave(self) -> None:
        self.pipe.send("leave")
        self.hears("out")
        self.end()

    def kill(self) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self.end()

    def end(self) -> None:
        self.process.join(DEADLINE)
        assert not self.process.is_alive()


def test_it_is_raised_inside_and_what_it_was_outside(setting: Path) -> None:
    with window.allowed():
        assert setting.read_text() == "1"
    assert setting.read_text().strip() == "0"


@pytest.mark.parametrize("before", ["0", "1"])
def test_the_last_one_puts_back_what_was_there(setting: Path, before: str) -> None:
    setting.write_text(before)
    first, second = Restore(), Restore()
    first.hears("in")
    second.hears("in")
    first.leave()
    assert setting.read_text() == "1"
    second.leave()
    assert setting.read_text() == before


def test_many_at_once_do_not_wait_for_each_other(setting: Path) -> None:
    """All are inside before the first one leaves."""
    restores = [Restore() for _ in range(6)]
    for each in restores:
        each.hears("in")
    assert setting.read_text() == "1"
    for each in restores:
        each.leave()
    assert setting.read_text().strip() == "0"


def test_what_a_killed_restore_left_is_put_back_by_settle(setting: Path) -> None:
    killed = Restore()
    killed.hears("in")
    killed.kill()
    assert setting.read_text() == "1"
    assert window.settle()
    assert setting.read_text() == "0"
    assert not window.settle()


def test_settle_leaves_it_alone_while_somebody_is_inside(setting: Path) -> None:
    killed, other = Restore(), Restore()
    killed.hears("in")
    other.hears("in")
    killed.kill()
    assert not window.settle()
    assert setting.read_text() == "1"
    other.leave()
    assert setting.read_text() == "0"


def test_the_next_restore_puts_back_what_a_killed_one_left(setting: Path) -> None:
    killed = Restore()
    killed.hears("in")
    killed.kill()
    with window.allowed():
        assert setting.read_text() == "1"
    assert setting.read_text() == "0"


def test_one_that_was_lowered_meanwhile_is_raised_again(setting: Path) -> None:
    """By an administrator, or because a restore was killed between writing down and raising."""
    killed = Restore()
    killed.hears("in")
    killed.kill()
    setting.write_text("0")
    with window.allowed():
        assert setting.read_text() == "1"
    assert setting.read_text() == "0"


def test_nothing_was_ever_raised(setting: Path) -> None:
    assert not window.settle()
    assert not window.LOCK.exists()


@pytest.mark.skipif(not window.is_possible(), reason="userfaultfd is not ours to allow here")
def test_the_kernel_takes_it() -> None:
    with window.allowed():
        assert window.SETTING.read_text().strip() == "1"
