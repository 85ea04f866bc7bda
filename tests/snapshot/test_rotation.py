"""A new key-encryption key, broken off anywhere, beside others; and backups that can be restored."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from snapshot.errors import (
    KeyUnavailableError,
    NewerFormatError,
    StoreUnavailableError,
    TamperedError,
)
from snapshot.key_backup import open_backup, seal_backup
from snapshot.keyfiles import LocalWrapping
from snapshot.keys import Keys
from snapshot.rotation import rotate
from snapshot.stores.base import Data, Store
from snapshot.stores.directory import DirectoryStore
from snapshot.stores.retry import RetryingStore
from tests.builders.s3 import S3Server, s3_server
from tests.builders.snapshots import Memory, key, load, repository, save
from tests.fakes.stores import PassingOn, StoreInMemory, StoreThatCounts, StoreThatDiesAfter
from tests.snapshot.layouts import filled

__all__ = ["s3_server"]

OWNERS = ("ada", "bob", "eve")
PASSPHRASE = "five words and one more"


def keys(store: Store, folder: Path) -> Keys:
    return Keys(store, LocalWrapping(folder / "keys"))


def files(folder: Path) -> set[str]:
    return {path.name for path in (folder / "keys").glob("*.key")}


@dataclass
class Users:
    """Some users' keys as they were made, to be compared with what is read later."""

    store: StoreInMemory
    folder: Path
    ids: dict[str, str] = field(default_factory=dict)
    names: dict[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        made = {owner: keys(self.store, self.folder).current(owner) for owner in OWNERS}
        self.ids = {owner: each.id for owner, each in made.items()}
        self.names = {owner: each.name(b"x") for owner, each in made.items()}

    def are_readable(self, folder: Path | None = None) -> bool:
        fresh = keys(self.store, folder or self.folder)
        return all(fresh.get(o, self.ids[o]).name(b"x") == self.names[o] for o in OWNERS)


@pytest.fixture
def users(tmp_path: Path) -> Users:
    return Users(StoreInMemory(), tmp_path)


def wrapping(users: Users) -> LocalWrapping:
    return LocalWrapping(users.folder / "keys")


def test_rotation_rewrites_records_only_and_keeps_everything_readable(tmp_path: Path) -> None:
    store = StoreInMemory()
    target = repository(store, tmp_path)
    memory: Memory = {("task", 1): [(0, filled(2**20, 1))]}
    manifest = save(target, key(), memory).manifest
    before = dict(store.objects)
    counting = StoreThatCounts(store)
    old = LocalWrapping(tmp_path / "keys").current_id()

    done = rotate(keys(counting, tmp_path), LocalWrapping(tmp_path / "keys"))

    assert (done.rewrapped, done.problems) == (1, ())
    assert done.key != old
    changed = {name for name in store.objects if store.objects[name] != before.get(name)}
    assert changed == {name for name in before if name.startswith("keys/")}
    assert counting.written == sorted(changed)
    assert files(tmp_path) == {"kek.key"}
    assert load(repository(store, tmp_path).open(manifest), memory) == memory
    assert load(target.open(manifest), memory) == memory  # who had it open goes on
    assert save(target, key(sequence=2), memory).stored_bytes < 2**18  # and shares packs


@pytest.mark.parametrize("writes", range(len(OWNERS) + 1))
def test_a_rotation_that_dies_between_records_is_finished_by_the_next(
    users: Users, writes: int
) -> None:
    dying = StoreThatDiesAfter(users.store, writes=writes)
    try:
        rotate(keys(dying, users.folder), wrapping(users))
    except StoreUnavailableError:
        assert len(files(users.folder)) == 2
    assert users.are_readable()
    assert rotate(keys(users.store, users.folder), wrapping(users)).rewrapped == len(OWNERS)
    assert users.are_readable()
    assert files(users.folder) == {"kek.key"}


@pytest.mark.parametrize("step", ["put aside", "new file written", "new key current"])
def test_a_rotation_that_dies_between_files_is_finished_by_the_next(
    users: Users, step: str
) -> None:
    """The states that a crash leaves, made as the steps make them."""
    folder = users.folder / "keys"
    old = wrapping(users).current_id()
    (folder / f"kek-{old}.key").hardlink_to(folder / "kek.key")
    if step != "put aside":
        fresh = LocalWrapping(users.folder / "elsewhere")
        fresh.current_id()
        (users.folder / "elsewhere" / "kek.key").rename(folder / ".new-1")
    if step == "new key current":
        (folder / ".new-1").rename(folder / "kek.key")
        keys(users.store, users.folder).rewrap("ada", users.ids["ada"])
    assert users.are_readable()
    assert rotate(keys(users.store, users.folder), wrapping(users)).problems == ()
    assert users.are_readable()
    assert files(users.folder) == {"kek.key"}


@dataclass
class StoreThatHoldsARecordBack(PassingOn):
    """The first write below keys/ waits until it is let go."""

    reached: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)

    def put(self, key: str, data: Data, *, if_absent: bool = False) -> None:
        if not self.reached.is_set():
            self.reached.set()
            assert self.go_on.wait(30)
        self.inner.put(key, data, if_absent=if_absent)


def test_a_key_that_is_made_during_a_rotation_is_not_left_behind(users: Users) -> None:
    """It was wrapped with the old key and reaches the store late: the rotation waits for it."""
    slow = StoreThatHoldsARecordBack(users.store)
    with ThreadPoolExecutor(2) as pool:
        making = pool.submit(lambda: keys(slow, users.folder).current("new"))
        assert slow.reached.wait(30)
        rotating = pool.submit(rotate, keys(users.store, users.folder), wrapping(users))
        while len(files(users.folder)) < 2:  # the new key is current, the old one put aside
            assert not rotating.done()
        slow.go_on.set()
        made = making.result()
        assert rotating.result().rewrapped == len(OWNERS) + 1
    assert files(users.folder) == {"kek.key"}
    again = keys(users.store, users.folder).get("new", made.id)
    assert again.name(b"x") == made.name(b"x")


@dataclass
class StoreWhereSomethingHappensAfterTheFirstRead(PassingOn):
    """What a reader meets that is overtaken between two steps."""

    happens: list[Callable[[], None]] = field(default_factory=list)

    def get(self, key: str, *, start: int | None = None, end: int | None = None) -> bytes:
        data = self.inner.get(key, start=start, end=end)
        if self.happens:
            self.happens.pop()()
        return data


def test_a_reader_overtaken_by_a_whole_rotation_reads_again(users: Users) -> None:
    def whole() -> None:
        rotate(keys(users.store, users.folder), wrapping(users))

    overtaken = StoreWhereSomethingHappensAfterTheFirstRead(users.store, happens=[whole])
    found = keys(overtaken, users.folder).get("ada", users.ids["ada"])
    assert found.name(b"x") == users.names["ada"]
    assert overtaken.happens == []


def test_an_erased_key_does_not_come_back_by_a_rotation(users: Users) -> None:
    """The erasure falls between reading and rewriting the record: it has to wait its turn."""
    with ThreadPoolExecutor(1) as pool:
        erasing = []

        def erase() -> None:
            erasing.append(pool.submit(keys(users.store, users.folder).erase, "ada"))

        store = StoreWhereSomethingHappensAfterTheFirstRead(users.store, happens=[erase])
        keys_of_rotation = keys(store, users.folder)
        rotate(keys_of_rotation, wrapping(users))
        assert erasing[0].result() == 1
    assert keys(users.store, users.folder).ids("ada") == ()


def test_only_one_rotation_at_a_time(users: Users) -> None:
    refused = pytest.raises(KeyUnavailableError, match="Another rotation")
    with wrapping(users).only_rotation(), refused:
        rotate(keys(users.store, users.folder), wrapping(users))
    assert rotate(keys(users.store, users.folder), wrapping(users)).rewrapped == len(OWNERS)


def test_a_damaged_record_is_named_and_keeps_nobody_else_from_being_rotated(users: Users) -> None:
    name = f"keys/bob/{users.ids['bob']}"
    record = json.loads(users.store.objects[name])
    record["wrapped"] = "00" + record["wrapped"][2:]
    users.store.objects[name] = json.dumps(record).encode()
    done = rotate(keys(users.store, users.folder), wrapping(users))
    assert done.rewrapped == 2
    assert len(done.problems) == 1
    assert done.problems[0].startswith("bob: ")
    assert files(users.folder) == {"kek.key", f"kek-{record['kek']}.key"}
    assert keys(users.store, users.folder).get("ada", users.ids["ada"]).name(b"x")


def test_a_new_snapshot_does_not_fail_for_one_of_two_keys(users: Users) -> None:
    users.store.objects["keys/ada/" + "0" * 32] = b"damaged"
    assert keys(users.store, users.folder).current("ada").id == users.ids["ada"]


# -- backups -----------------------------------------------------------------------------------


def test_a_backup_brings_everything_back_on_another_machine(users: Users) -> None:
    backup = seal_backup(wrapping(users).all(), PASSPHRASE)
    other = LocalWrapping(users.folder / "other" / "keys")
    assert other.bring_back(open_backup(backup, PASSPHRASE)) == (wrapping(users).current_id(),)
    assert users.are_readable(users.folder / "other")
    assert other.current_id() == wrapping(users).current_id()
    assert other.bring_back(open_backup(backup, PASSPHRASE)) == ()
    modes = {path.stat().st_mode & 0o777 for path in (users.folder / "other" / "keys").iterdir()}
    assert modes == {0o600}


def test_a_backup_is_taken_in_beside_a_key_that_was_made_meanwhile(users: Users) -> None:
    backup = seal_backup(wrapping(users).all(), PASSPHRASE)
    other = LocalWrapping(users.folder / "other" / "keys")
    fresh = other.current_id()
    other.bring_back(open_backup(backup, PASSPHRASE))
    assert other.current_id() == fresh
    assert users.are_readable(users.folder / "other")
    rotate(keys(users.store, users.folder / "other"), other)
    assert files(users.folder / "other") == {"kek.key"}
    assert users.are_readable(users.folder / "other")


def test_a_backup_in_the_middle_of_a_rotation_holds_both_keys(users: Users) -> None:
    dying = StoreThatDiesAfter(users.store, writes=1)
    with pytest.raises(StoreUnavailableError):
        rotate(keys(dying, users.folder), wrapping(users))
    backup = seal_backup(wrapping(users).all(), PASSPHRASE)
    other = LocalWrapping(users.folder / "other" / "keys")
    assert len(other.bring_back(open_backup(backup, PASSPHRASE))) == 2
    assert users.are_readable(users.folder / "other")


def test_a_backup_shows_no_key_and_opens_for_nobody_else(users: Users) -> None:
    backup = seal_backup(wrapping(users).all(), PASSPHRASE)
    (secret,) = wrapping(users).all().values()
    assert secret not in backup
    assert secret.hex().encode() not in backup
    assert (users.folder / "keys" / "kek.key").read_bytes().strip() not in backup
    with pytest.raises(TamperedError, match="passphrase is wrong"):
        open_backup(backup, PASSPHRASE + "!")


@pytest.mark.parametrize(
    ("key_id", "value"),
    [
        ("keys", ["0" * 16]),
        ("sealed", "AAAA"),
        ("format", "something else"),
        ("scrypt", {"n": 2, "r": 8, "p": 1, "salt": "00"}),
        ("scrypt", {"n": 2**40, "r": 8, "p": 1, "salt": "00"}),
        ("scrypt", {"n": 2**17, "r": 8, "p": 1, "salt": "no hex"}),
    ],
)
def test_a_changed_backup_is_refused(users: Users, key_id: str, value: object) -> None:
    document = json.loads(seal_backup(wrapping(users).all(), PASSPHRASE))
    document[key_id] = value
    with pytest.raises(TamperedError):
        open_backup(json.dumps(document).encode(), PASSPHRASE)


def test_what_is_no_backup_is_refused(users: Users) -> None:
    for data in (b"", b"[]", b"{}", b"\xff", b'{"format": 1}'):
        with pytest.raises(TamperedError, match="no backup"):
            open_backup(data, PASSPHRASE)
    document = json.loads(seal_backup(wrapping(users).all(), PASSPHRASE))
    with pytest.raises(NewerFormatError):
        open_backup(json.dumps(document | {"version": 2}).encode(), PASSPHRASE)


def test_a_short_passphrase_and_nothing_to_back_up_are_refused(
    users: Users, tmp_path: Path
) -> None:
    with pytest.raises(KeyUnavailableError, match="12 or more"):
        seal_backup(wrapping(users).all(), "secret")
    with pytest.raises(KeyUnavailableError, match="no key-encryption key yet"):
        seal_backup(LocalWrapping(tmp_path / "nothing").all(), PASSPHRASE)


# -- beside others -----------------------------------------------------------------------------


@pytest.fixture(params=["directory", "s3"])
def real_store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "directory":
        return DirectoryStore(tmp_path / "store")
    server: S3Server = request.getfixturevalue("s3_server")
    return RetryingStore(server.new_store())


def test_suspends_and_resumes_beside_rotations_notice_nothing(
    real_store: Store, tmp_path: Path
) -> None:
    """Every suspend and resume opens the store anew, as its own process does, and half of the users
    are new."""
    done = threading.Event()

    def rotations() -> int:
        count = 0
        while not done.is_set() or not count:
            rotate(keys(real_store, tmp_path), LocalWrapping(tmp_path / "keys"))
            count += 1
        return count

    def life(owner: str) -> None:
        for turn in range(1, 5):
            memory: Memory = {("task", 1): [(0, filled(2**18, turn))]}
            name = owner if turn % 2 else f"{owner}-{turn}"
            wanted = key(sequence=turn, owner=name, session=f"of {name}")
            manifest = save(repository(real_store, tmp_path), wanted, memory).manifest
            assert load(repository(real_store, tmp_path).open(manifest), memory) == memory

    with ThreadPoolExecutor(3) as pool:
        rotating = pool.submit(rotations)
        lives = [pool.submit(life, owner) for owner in ("ada", "bob")]
        try:
            for each in lives:
                each.result()
        finally:
            done.set()
        assert rotating.result() > 0
    assert files(tmp_path) == {"kek.key"}
    for stored in repository(real_store, tmp_path).list():
        repository(real_store, tmp_path).open(stored.manifest).verify()
