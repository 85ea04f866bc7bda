"""The filesystem layer: what was changed comes back, and only where it belongs."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import shutil
import socket
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from snapshot import layer, layer_apply, layer_base, tree_scan
from snapshot.errors import TamperedError
from snapshot.layer import LayerError, LayerRecord
from snapshot.model import SandboxSpec, Stored
from snapshot.plan import Mount
from snapshot.tree import Item, to_line
from snapshot.tree_scan import scan
from tests.builders.sandboxes import ALICE

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="owners are given away by root only")


@dataclass
class Parts:
    """A snapshot's files in memory, that insists on small ones."""

    files: dict[str, bytes] = field(default_factory=dict)

    def add_file(self, name: str, data: bytes) -> None:
        assert name not in self.files
        assert 0 < len(data) <= layer.PART
        self.files[name] = data

    def add_pages(self, kind: str, id: int, vaddr: int, data: memoryview | bytes) -> None: ...
    def commit(self, extra: dict[str, Any]) -> Stored: ...  # type: ignore[empty-body]
    def abort(self) -> None: ...


@dataclass
class Place:
    """One machine: the folder that is seen at /work inside, and what is remembered of it."""

    work: Path
    spec: SandboxSpec

    @property
    def mounts(self) -> tuple[Mount, ...]:
        return (Mount(str(self.work), "/work", False, "work", ""),)

    def begin(self) -> None:
        """As if what is there had been there for a second."""
        layer_base.begin(self.spec, self.mounts, now_ns=lambda: time.time_ns() + 10**9)

    def capture(self, parts: Parts) -> tuple[LayerRecord, ...]:
        return layer.capture(self.spec, self.mounts, parts)

    def apply(self, records: tuple[LayerRecord, ...], parts: Parts) -> None:
        layer_apply.apply(records, self.spec, self.mounts, parts.files.__getitem__)


def place(folder: Path) -> Place:
    work = folder / "work"
    work.mkdir(parents=True)
    own = folder / "own"
    own.mkdir()
    spec = SandboxSpec(own, ALICE, 1_500_000, (), {}, "/", layer=("/work",))
    return Place(work, spec)


@pytest.fixture
def here(tmp_path: Path) -> Place:
    return place(tmp_path / "here")


@pytest.fixture
def there(tmp_path: Path) -> Place:
    return place(tmp_path / "there")


def move(here: Place, there: Place) -> tuple[LayerRecord, ...]:
    """Take here's changes to another machine."""
    parts = Parts()
    records = here.capture(parts)
    there.apply(records, parts)
    return records


def seen(folder: Path) -> dict[str, Any]:
    """Everything about a tree that must be equal, hard links as the first of their names."""
    root = os.open(folder, os.O_RDONLY)
    try:
        entries = scan(root).entries
    finally:
        os.close(root)
    first: dict[tuple[int, int], str] = {}
    result = {}
    for path, entry in sorted(entries.items()):
        content = b""
        if entry.kind == "file":
            content = hashlib.sha256((folder / path).read_bytes()).digest()
        same = first.setdefault(entry.inode, path)
        size = 0 if entry.kind == "folder" else entry.size
        known = replace(entry, inode=(0, 0), changed_ns=0, size=size)
        result[path] = (known, content, same)
    return result


# Edits of a tree

NAMES = st.sampled_from(["a", "b", "c", "ü", "\udcff", "link", "with space"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
IDS = st.integers(210_000, 210_003)
Edit = Callable[[Path], None]


def _at(root: Path, path: str) -> Path:
    """A path whose folders exist; OSError where a link or a file is in the way."""
    place = root / path
    place.parent.mkdir(parents=True, exist_ok=True)
    if os.path.realpath(place.parent) != str(place.parent):
        raise NotADirectoryError(path)
    return place


def _write(root: Path, path: str, content: bytes, hole: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    with os.fdopen(os.open(_at(root, path), flags, 0o644), "wb") as handle:
        handle.seek(hole)
        handle.write(content)


def _remove(root: Path, path: str) -> None:
    place = _at(root, path)
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        place.unlink()


def _attribute(root: Path, path: str, name: str, value: bytes) -> None:
    os.setxattr(_at(root, path), f"user.{name}", value, follow_symlinks=False)


def _acl(root: Path, path: str, uid: int) -> None:
    """What `setfacl -m u:UID:rwx` sets."""
    tags = [(1, 7, -1), (2, 7, uid), (4, 5, -1), (16, 7, -1), (32, 5, -1)]
    value = (2).to_bytes(4, "little") + b"".join(
        tag.to_bytes(2, "little") + bits.to_bytes(2, "little") + (who % 2**32).to_bytes(4, "little")
        for tag, bits, who in tags
    )
    os.setxattr(_at(root, path), "system.posix_acl_access", value, follow_symlinks=False)


def _chmod(root: Path, path: str, mode: int) -> None:
    place = _at(root, path)
    if not place.is_symlink():
        place.chmod(mode)


EDITS: st.SearchStrategy[tuple[Callable[..., None], tuple[Any, ...]]] = st.one_of(
    st.tuples(
        st.just(_write),
        st.tuples(PATHS, st.binary(max_size=40), st.sampled_from([0, 0, 5, 200_000])),
    ),
    st.tuples(st.just(_remove), st.tuples(PATHS)),
    st.tuples(st.just(lambda r, p: _at(r, p).mkdir()), st.tuples(PATHS)),
    st.tuples(
        st.just(lambda r, p, to: _at(r, p).symlink_to(to)),
        st.tuples(PATHS, st.sampled_from(["a", "..", "../../b", "/nowhere/at all", "\udcff"])),
    ),
    st.tuples(
        st.just(lambda r, p, to: os.link(_at(r, to), _at(r, p), follow_symlinks=False)),
        st.tuples(PATHS, PATHS),
    ),
    st.tuples(st.just(lambda r, p, to: _at(r, to).rename(_at(r, p))), st.tuples(PATHS, PATHS)),
    st.tuples(st.just(lambda r, p: os.mkfifo(_at(r, p))), st.tuples(PATHS)),
    st.tuples(st.just(_chmod), st.tuples(PATHS, st.integers(0, 0o7777))),
    st.tuples(
        st.just(lambda r, p, u, g: os.chown(_at(r, p), u, g, follow_symlinks=False)),
        st.tuples(PATHS, IDS, IDS),
    ),
    st.tuples(st.just(_attribute), st.tuples(PATHS, NAMES.filter(str.isascii), st.binary())),
    st.tuples(st.just(_acl), st.tuples(PATHS, IDS)),
    st.tuples(
        st.just(lambda r, p, ns: os.utime(_at(r, p), ns=(ns, ns), follow_symlinks=False)),
        st.tuples(PATHS, st.integers(0, 2**60)),
    ),
)


def edit(root: Path, edits: list[tuple[Callable[..., None], tuple[Any, ...]]]) -> None:
    for do, arguments in edits:
        with contextlib.suppress(OSError):
            do(root, *arguments)


@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    # making a failing example smaller would take minutes: each is three trees on a disk
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow],
)
@given(st.lists(EDITS, max_size=12), st.lists(EDITS, max_size=12), st.lists(EDITS, max_size=6))
def test_changes_applied_to_the_original_give_the_same_tree(
    before: list[Any], changes: list[Any], more: list[Any]
) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        here, there, third = (place(Path(temporary, name)) for name in ("1", "2", "3"))
        edit(here.work, before)
        _copy(here.work, there.work)
        _copy(here.work, third.work)
        here.begin()
        edit(here.work, changes)
        move(here, there)
        assert seen(there.work) == seen(here.work)
        # the second machine goes on, and the third has the original again
        edit(there.work, more)
        move(there, third)
        assert seen(third.work) == seen(there.work)


def _copy(source: Path, target: Path) -> None:
    subprocess.run(["/bin/cp", "-a", "--", f"{source}/.", str(target)], check=True)


def test_what_did_not_change_is_not_stored(here: Place) -> None:
    (here.work / "big").write_bytes(b"x" * 100_000)
    (here.work / "folder").mkdir()
    (here.work / "folder" / "old").write_bytes(b"y" * 100_000)
    here.begin()
    (here.work / "folder" / "new").write_bytes(b"z" * 10)
    (record,) = here.capture(Parts())
    assert (record.items, record.bytes) == (3, 10)  # the file, its folder, the folder itself


def test_content_that_keeps_size_and_time_is_seen(here: Place, there: Place) -> None:
    file = here.work / "file"
    file.write_bytes(b"one")
    os.utime(file, ns=(5, 5))
    here.begin()
    file.write_bytes(b"two")
    os.utime(file, ns=(5, 5))
    move(here, there)
    assert (there.work / "file").read_bytes() == b"two"


def test_a_change_in_the_same_tick_as_the_first_look_is_not_missed(here: Place) -> None:
    (here.work / "file").write_bytes(b"one")
    layer_base.begin(here.spec, here.mounts, now_ns=time.time_ns)
    (record,) = here.capture(Parts())
    assert record.bytes == 3


def test_without_a_first_look_nothing_is_lost(here: Place, there: Place) -> None:
    (here.work / "file").write_bytes(b"one")
    move(here, there)
    assert seen(there.work) == seen(here.work)


def test_the_first_look_stays_the_first(here: Place) -> None:
    (here.work / "old").write_bytes(b"before")
    here.begin()
    (here.work / "new").write_bytes(b"after")
    here.begin()
    (record,) = here.capture(Parts())
    assert record.bytes == 5


def test_a_folder_made_anew_has_a_first_look_of_its_own(here: Place) -> None:
    (here.work / "old").write_bytes(b"before")
    here.begin()
    here.work.rename(here.work.with_name("away"))
    here.work.mkdir()
    (here.work / "image").write_bytes(b"of the image")
    here.begin()
    (here.work / "new").write_bytes(b"after")
    (record,) = here.capture(Parts())
    assert record.bytes == 5


def test_large_files_pass_in_parts_with_their_holes(here: Place, there: Place) -> None:
    content = random.Random(1).randbytes(3 * layer.PART + 12_345)
    here.begin()
    (here.work / "a small one first").write_bytes(b"small")
    with (here.work / "large").open("wb") as handle:
        handle.write(content)
        handle.seek(2**40)
        handle.write(b"end")
    parts = Parts()
    (record,) = here.capture(parts)
    assert record.data_parts == 5
    assert sum(map(len, parts.files.values())) < len(content) + 50_000
    there.apply((record,), parts)
    copy = there.work / "large"
    assert copy.stat().st_size == 2**40 + 3
    assert copy.stat().st_blocks * 512 < len(content) + 2**20
    with copy.open("rb") as handle:
        assert handle.read(len(content)) == content
        handle.seek(2**40)
        assert handle.read() == b"end"


def test_a_large_file_is_the_same_parts_whatever_comes_before_it(here: Place) -> None:
    here.begin()
    (here.work / "large").write_bytes(random.Random(1).randbytes(layer.PART + layer.ALONE))
    first, second = Parts(), Parts()
    here.capture(first)
    (here.work / "a").write_bytes(b"pushes everything on")
    here.capture(second)
    assert set(first.files.values()) & {d for d in second.files.values() if len(d) >= layer.ALONE}
    assert len(set(first.files.values()) & set(second.files.values())) == 2


def test_a_file_of_many_small_holes_is_few_runs(here: Place, there: Place) -> None:
    here.begin()
    with (here.work / "comb").open("wb") as handle:
        for number in range(500):
            handle.seek(number * 8192)
            handle.write(b"tooth")
        handle.seek(2**30)
        handle.write(b"tooth")
        handle.truncate(2**31)
    parts = Parts()
    records = here.capture(parts)
    assert len(parts.files[records[0].index_name(0)]) < 1000
    there.apply(records, parts)
    copy = there.work / "comb"
    assert copy.stat().st_size == 2**31
    assert copy.stat().st_blocks * 512 < 5_000_000
    with copy.open("rb") as handle:
        assert handle.read(500 * 8192).count(b"tooth") == 500
        handle.seek(2**30)
        assert handle.read(6) == b"tooth\0"


@pytest.mark.parametrize(
    ("limit", "says"),
    [
        ("MAX_ENTRIES", "more than 10 files in /work"),
        ("MAX_WEIGHT", "names and attributes in /work"),
    ],
)
def test_more_than_memory_should_hold_is_refused(
    here: Place, monkeypatch: pytest.MonkeyPatch, limit: str, says: str
) -> None:
    here.begin()
    for number in range(10):
        (here.work / f"file {number}").touch()
    monkeypatch.setattr(tree_scan, limit, 10)
    with pytest.raises(LayerError, match=says):
        here.capture(Parts())


def test_an_index_of_many_parts(here: Place, there: Place) -> None:
    here.begin()
    for number in range(25_000):
        (here.work / f"{number:0>180}").touch()
    (record,) = move(here, there)
    assert record.index_parts == 2
    assert os.listdir(there.work).__len__() == 25_000


def test_what_cannot_be_kept_is_said(here: Place) -> None:
    here.begin()
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(here.work / "socket"))
    os.mknod(here.work / "device", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    records = here.capture(Parts())
    (note,) = layer.notes(records)
    assert note.startswith("Not kept of /work: 1 device(s), 1 socket(s); those of running")
    assert layer.notes((replace(records[0], left_out=()),)) == ()


def test_what_is_mounted_below_is_neither_taken_nor_removed(
    here: Place, there: Place, tmp_path: Path
) -> None:
    for folder in (here.work, there.work):
        (folder / "volume").mkdir()
        (folder / "volume" / "of the image").touch()
        (folder / "single").touch()
    volume = tmp_path / "volume"
    volume.mkdir()
    (volume / "secret").write_text("not ours")
    here.begin()
    (here.work / "other").touch()
    with mounted(volume, here.work / "volume"), mounted(volume / "secret", here.work / "single"):
        records = move(here, there)
        assert not {"secret"} & set(os.listdir(there.work / "volume"))
    assert records[0].left_out == ("single (mounted there)", "volume (mounted there)")
    assert (there.work / "volume" / "of the image").exists()
    assert (there.work / "single").read_bytes() == b""


@contextlib.contextmanager
def mounted(source: Path, target: Path) -> Iterator[None]:
    subprocess.run(["/bin/mount", "--bind", str(source), str(target)], check=True)
    try:
        yield
    finally:
        subprocess.run(["/bin/umount", str(target)], check=True)


def test_folders_nested_deeper_than_a_path_can_say(here: Place) -> None:
    here.begin()
    descent = os.open(here.work, os.O_RDONLY)
    for _ in range(40):
        os.mkdir("d" * 200, dir_fd=descent)
        below = os.open("d" * 200, os.O_RDONLY, dir_fd=descent)
        os.close(descent)
        descent = below
    os.close(descent)
    (record,) = here.capture(Parts())
    assert "nested too deeply" in record.left_out[0]
    shutil.rmtree(here.work)


# What programs inside may have prepared for the moment of putting back


def index(*items: Item) -> tuple[tuple[LayerRecord, ...], Parts]:
    """A layer with exactly these steps."""
    lines = b"".join(map(to_line, items))
    record = LayerRecord("/work", "work", 1, 1, len(items), 0)
    files = {record.index_name(0): lines, record.data_name(0): b"evil"}
    return (record,), Parts(files)


@pytest.mark.parametrize(
    "path", ["../escaped", "a/../../escaped", "/etc/escaped", "a//b", ".", "x\0"]
)
def test_a_path_that_leads_out_is_refused(there: Place, path: str) -> None:
    for item in (Item(path, "folder"), Item(path, "gone"), Item("x", "file", same_as=path)):
        with pytest.raises(TamperedError):
            there.apply(*index(item))
    assert set(os.listdir(there.work.parent)) == {"work", "own"}


def test_a_link_in_the_way_is_not_followed(there: Place, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("untouched")
    (there.work / "way").symlink_to(outside)
    for item in (
        Item("way/new", "file"),
        Item("way/file", "gone"),
        Item("way/folder", "folder"),
        Item("stolen", "file", same_as="way/file"),
    ):
        with pytest.raises(LayerError):
            there.apply(*index(item))
    assert os.listdir(outside) == ["file"]
    assert (outside / "file").read_text() == "untouched"


def test_a_link_in_place_of_a_file_or_folder_is_replaced(there: Place, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o755)
    victim = outside / "victim"
    victim.write_text("untouched")
    (there.work / "file").symlink_to(victim)
    (there.work / "folder").symlink_to(outside)
    there.apply(
        *index(
            Item("file", "file", mode=0o777, uid=5, size=4),
            Item("folder", "folder", mode=0o777, uid=5),
            Item("folder/in", "link", target=str(victim), uid=5),
        )
    )
    assert victim.read_text() == "untouched"
    assert (victim.stat().st_uid, outside.stat().st_uid) == (0, 0)
    assert stat.S_IMODE(outside.stat().st_mode) == 0o755
    assert (there.work / "folder" / "in").is_symlink()
    assert os.listdir(outside) == ["victim"]


def test_a_hard_link_to_a_foreign_file_is_cut_not_written_through(
    there: Place, tmp_path: Path
) -> None:
    foreign = tmp_path / "foreign"
    foreign.write_text("untouched")
    os.link(foreign, there.work / "file")
    records, parts = index(Item("file", "file", mode=0o600, size=9))
    there.apply(records, parts)
    assert foreign.read_text() == "untouched"
    assert (there.work / "file").read_bytes() == bytes(9)


def test_a_layer_cut_short_or_damaged_is_refused(here: Place, there: Place) -> None:
    here.begin()
    (here.work / "file").write_bytes(b"content")
    parts = Parts()
    records = here.capture(parts)
    name = records[0].index_name(0)
    whole = parts.files[name]
    for damaged in (whole[:-1], whole[5:]):
        with pytest.raises(TamperedError):
            there.apply(records, Parts(parts.files | {name: damaged}))
    with pytest.raises(TamperedError, match="fit together"):
        there.apply(records, Parts(parts.files | {records[0].data_name(0): b"con"}))


def test_applying_twice_gives_the_same(here: Place, there: Place) -> None:
    here.begin()
    (here.work / "file").write_bytes(b"content")
    os.link(here.work / "file", here.work / "other")
    (here.work / "folder").mkdir()
    (here.work / "link").symlink_to("folder")
    parts = Parts()
    records = here.capture(parts)
    there.apply(records, parts)
    there.apply(records, parts)
    assert seen(there.work) == seen(here.work)


def test_nothing_reads_on_after_a_failure(here: Place) -> None:
    """A pool that is ended when it is collected may be ended in a thread that is just starting."""
    here.begin()
    (here.work / "a").write_bytes(os.urandom(3 * layer.PART))
    parts = Parts()
    records = here.capture(parts)
    last = records[0].data_name(records[0].data_parts - 1)
    damaged = parts.files | {last: parts.files[last][:-1]}
    caught: list[BaseException] = []
    try:
        layer_apply.apply(records, here.spec, here.mounts, damaged.__getitem__)
    except TamperedError as error:
        caught.append(error)  # and with it everything that was at work
    assert caught
    assert [t.name for t in threading.enumerate() if t.name.startswith("layer")] == []
