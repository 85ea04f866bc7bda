"""Deleted files that have another name somewhere: each restore opens them by a name of its own. With
CRIU: tests/e2e/test_fork.py."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from snapshot import pins, remaps
from snapshot.images import RegularFile
from snapshot.plan import Mount
from tests.builders.sandboxes import make_box

INSIDE = "/home/alice/link_remap.7"


@dataclass
class Frozen:
    """A home in which CRIU gave a deleted file a name, and the pin of it."""

    home: Path
    folder: Path
    space: pins.Namespace
    held: tuple[pins.Pin, ...]

    def renew(self, sandbox: str) -> str:
        """The name that CRIU is told, as a file name in the home."""
        (change,) = remaps.renew(self.held, self.space, self.folder, sandbox=sandbox).values()
        assert change.unchecked and change.name.startswith("/home/alice/")
        return change.name.removeprefix("/home/alice/")


@pytest.fixture
def frozen(tmp_path: Path) -> Frozen:
    box = make_box(tmp_path / "b")
    folder = box.spec.directory / "pins" / "1-1"
    folder.mkdir(parents=True)
    space = pins.Namespace(box.spec, (Mount(str(box.home), "/home/alice", False, "h", ""),))
    (box.home / "link_remap.7").write_text("deleted, but open")
    held = pins.hold([RegularFile(9, INSIDE, -1)], space, folder, open_files=frozenset({9}))
    return Frozen(box.home, folder, space, held)


def test_nothing_shows_in_the_home_while_the_session_is_frozen(frozen: Frozen) -> None:
    remaps.take_away(frozen.held, frozen.space)
    assert os.listdir(frozen.home) == []
    remaps.take_away(frozen.held, frozen.space)


@pytest.mark.parametrize("taken_away", [True, False])
def test_every_sandbox_gets_the_file_by_a_name_of_its_own(frozen: Frozen, taken_away: bool) -> None:
    if taken_away:
        remaps.take_away(frozen.held, frozen.space)
    names = [frozen.renew("s-1"), frozen.renew("s-2"), frozen.renew("s-1")]
    assert names[0] == names[2] != names[1]
    assert sorted(os.listdir(frozen.home)) == sorted(set(names))
    for name in set(names):
        (frozen.home / name).unlink()  # as CRIU does at the end of a restore
    assert (frozen.home / frozen.renew("s-3")).read_text() == "deleted, but open"


def test_another_file_of_that_name_is_left_alone(frozen: Frozen) -> None:
    (frozen.home / "link_remap.7").unlink()
    (frozen.home / "link_remap.7").write_text("the user's")
    remaps.take_away(frozen.held, frozen.space)
    assert (frozen.home / frozen.renew("s-1")).read_text() == "deleted, but open"
    assert (frozen.home / "link_remap.7").read_text() == "the user's"


def test_a_folder_that_is_gone_or_a_link_now_is_left_to_others(
    frozen: Frozen, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    frozen.home.rename(elsewhere)
    assert remaps.renew(frozen.held, frozen.space, frozen.folder, sandbox="s") == {}
    frozen.home.mkdir()
    (frozen.home / "sub").symlink_to(elsewhere)
    inside = [replace(pin, name="/home/alice/sub/link_remap.7") for pin in frozen.held]
    assert remaps.renew(inside, frozen.space, frozen.folder, sandbox="s") == {}
    assert os.listdir(elsewhere) == ["link_remap.7"]


def test_the_sandboxs_own_tmp_keeps_criu_s_name(tmp_path: Path) -> None:
    box = make_box(tmp_path / "b")
    folder = box.spec.directory / "pins" / "1-1"
    folder.mkdir(parents=True)
    tmp = box.spec.directory / "tmp"
    tmp.mkdir(exist_ok=True)
    (tmp / "link_remap.7").write_text("open")
    space = pins.Namespace(box.spec, (Mount(str(tmp), "/tmp", False, "tmp", ""),))
    name = "/tmp/link_remap.7"
    held = pins.hold([RegularFile(9, name, -1)], space, folder, open_files=frozenset({9}))
    remaps.take_away(held, space)
    assert remaps.renew(held, space, folder, sandbox="s") == {}
    assert os.listdir(tmp) == ["link_remap.7"]
