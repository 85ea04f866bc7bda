"""Holding on to files: which are kept how, and what the thaw makes of a changed world."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from snapshot import pins
from snapshot.images import Change, RegularFile
from snapshot.plan import Mount
from tests.builders.sandboxes import make_box


@dataclass
class World:
    """A home that a sandbox sees at /home/alice, with one file pinned as number 7."""

    home: Path
    folder: Path
    space: pins.Namespace

    @property
    def file(self) -> Path:
        return self.home / "file"

    def hold(self, *names: str, opened: frozenset[int] = frozenset()) -> tuple[pins.Pin, ...]:
        files = [RegularFile(7 + i, name, -1) for i, name in enumerate(names)]
        return pins.hold(files, self.space, self.folder, open_files=opened)

    def adapt(self, held: tuple[pins.Pin, ...]) -> pins.Adaptation:
        return pins.adapt(held, self.space, self.folder)


@pytest.fixture
def world(tmp_path: Path) -> World:
    box = make_box(tmp_path / "b")
    folder = box.spec.directory / "pins" / "1-1"
    folder.mkdir(parents=True)
    mount = Mount(str(box.home), "/home/alice", False, "home_alice", "")
    made = World(box.home, folder, pins.Namespace(box.spec, (mount,)))
    made.file.write_text("as it was")
    return made


def _leave(world: World) -> None:
    pass


def _grow(world: World) -> None:
    with world.file.open("a") as handle:
        handle.write(" and more")


def _replace(world: World) -> None:
    new = world.file.with_suffix(".new")
    new.write_text("another one")
    new.replace(world.file)


def _remove(world: World) -> None:
    world.file.unlink()


def _copy_back(world: World) -> None:
    """As on another machine: the same content and time in another file."""
    found = world.file.stat()
    new = world.file.with_suffix(".new")
    new.write_text("as it was")
    os.utime(new, ns=(found.st_atime_ns, found.st_mtime_ns))
    new.replace(world.file)


PINNED = "/.pins/1-1/7"


@pytest.mark.parametrize(
    ("happens", "change", "note"),
    [
        (_leave, None, None),
        (_grow, Change(unchecked=True), "changed meanwhile"),
        (_replace, Change(name=PINNED), "replaced meanwhile; the session keeps"),
        (_remove, Change(name=PINNED), "removed meanwhile; the session keeps"),
        (_copy_back, None, None),
    ],
)
def test_a_linked_file(
    world: World, happens: Callable[[World], None], change: Change | None, note: str | None
) -> None:
    held = world.hold("/home/alice/file")
    assert held[0].held == "link"
    happens(world)
    adapted = world.adapt(held)
    assert adapted.changes == ({7: change} if change else {})
    assert [note in text for text in adapted.notes if note] == ([True] if note else [])
    assert (world.folder / "7").read_text().startswith("as it was")


def test_a_file_that_grew_and_was_removed_is_not_checked_for_its_size(world: World) -> None:
    held = world.hold("/home/alice/file")
    _grow(world)
    _remove(world)
    assert world.adapt(held).changes == {7: Change(unchecked=True, name=PINNED)}


def test_a_file_that_was_not_kept_and_is_gone_stops_the_thaw_with_its_name(world: World) -> None:
    held = (replace(world.hold("/home/alice/file")[0], held=""),)
    (world.folder / "7").unlink()
    _remove(world)
    with pytest.raises(pins.PinError, match="/home/alice/file"):
        world.adapt(held)


def test_a_path_through_a_link_of_the_user_is_not_followed(world: World, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    (closed / "file").write_text("secret")
    (world.home / "folder").symlink_to(closed)
    assert _names(world.hold("/home/alice/folder/file")) == []
    assert _names(world.hold("/home/alice/../../closed/file")) == []
    assert list(world.folder.iterdir()) == []


def _names(held: tuple[pins.Pin, ...]) -> list[str]:
    return [pin.name for pin in held]


def test_only_files_and_folders_on_disk_are_held(world: World) -> None:
    os.mkfifo(world.home / "pipe")
    names = [
        "/home/alice/pipe",
        "/dev/null",
        "/proc/1/maps",
        "/home/alice/no",
    ]
    assert world.hold(*names) == ()


def test_across_disks_mapped_files_are_copied_open_ones_are_not(world: World) -> None:
    """/dev/shm is another file system than the pin folder."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
        for name in ("mapped", "opened"):
            Path(other, name).write_text(name)
        mount = Mount(other, "/data", False, "data", "")
        space = pins.Namespace(make_box(world.home / "x").spec, (mount,))
        files = [RegularFile(1, "/data/mapped", 6), RegularFile(2, "/data/opened", 6)]
        held = pins.hold(files, space, world.folder, open_files=frozenset({2}))
        assert [(pin.name, pin.held) for pin in held] == [
            ("/data/mapped", "copy"),
            ("/data/opened", ""),
        ]
        content = pins.read(held[0], space)
        Path(other, "mapped").unlink()
        pins.put_back(held[0], content, world.folder)
        changes = pins.adapt(held, space, world.folder).changes
        assert changes == {1: Change(name="/.pins/1-1/1")}
        assert (world.folder / "1").read_text() == "mapped"


def test_a_put_back_file_has_its_owner_and_mode(world: World) -> None:
    pin = replace(world.hold("/home/alice/file")[0], id=9, uid=12345, gid=54321, mode=0o100750)
    pins.put_back(pin, b"content", world.folder)
    found = (world.folder / "9").stat()
    assert (found.st_uid, found.st_gid, found.st_mode) == (12345, 54321, 0o100750)


def test_a_put_back_file_never_runs_as_its_owner(world: World) -> None:
    """Other accounts of the machine reach the folder, and the file may have been replaced because
    it had a hole."""
    pin = replace(world.hold("/home/alice/file")[0], id=9, uid=0, gid=0, mode=0o106755)
    pins.put_back(pin, b"content", world.folder)
    assert (world.folder / "9").stat().st_mode == 0o100755


def test_a_folder_that_is_there_stays_whatever_is_in_it(world: World) -> None:
    (world.home / "folder").mkdir()
    held = world.hold("/home/alice/folder", "/home/alice")
    (world.home / "folder").rmdir()
    (world.home / "folder").mkdir(mode=0o700)
    (world.home / "folder/new").touch()
    assert world.adapt(held) == pins.Adaptation({}, ())


@pytest.mark.parametrize("now_a_file", [False, True])
def test_an_empty_folder_stands_in_for_one_that_is_gone(world: World, now_a_file: bool) -> None:
    (world.home / "folder").mkdir()
    held = world.hold("/home/alice/folder")
    (world.home / "folder").rmdir()
    if now_a_file:
        (world.home / "folder").touch()
    for _ in range(2):
        adaptation = world.adapt(held)
        assert adaptation.changes == {7: Change(unchecked=True, name="/.pins/1-1/7")}
        assert "/home/alice/folder is gone" in adaptation.notes[0]
    assert os.listdir(world.folder / "7") == []


def test_a_folder_in_the_place_of_a_file_is_not_that_file(world: World) -> None:
    held = world.hold("/home/alice/file")
    world.file.unlink()
    world.file.mkdir()
    assert world.adapt(held).changes == {7: Change(name="/.pins/1-1/7")}
