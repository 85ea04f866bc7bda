"""Accounts of the machine: safe names, ids that stay, homes that belong to their users."""

from __future__ import annotations

import multiprocessing
import os
import pwd
import stat
from pathlib import Path

import pytest

from spawner.identity import FIRST_MANAGED_ID, IdentityBook, NameRefusedError, check_name

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="gives folders to users")


def book(folder: Path, **options: object) -> IdentityBook:
    """A book in a folder of its own."""
    return IdentityBook(folder / "users.json", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["alice", "a", "_x", "bob-1", "carl@example.org", "d.e+f", "0day"])
def test_ordinary_names_are_accepted(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../x",
        "a/b",
        "/etc",
        "a\x00b",
        "a b",
        ".hidden",
        "-rf",
        "Alice",
        "a" * 64,
        "é",
        "a\n",
        "a:b",
        "a$(id)",
    ],
)
def test_other_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(NameRefusedError, match="cannot be a user here"):
        book(tmp_path).account(name)
    assert list(tmp_path.iterdir()) == []


@needs_root
def test_a_managed_account_keeps_its_id_and_owns_its_home(tmp_path: Path) -> None:
    first = book(tmp_path, use_system_accounts=False).account("alice")
    again = book(tmp_path, use_system_accounts=False).account("alice")
    other = book(tmp_path, use_system_accounts=False).account("bob")
    assert first == again
    assert first.identity.uid >= FIRST_MANAGED_ID
    assert other.identity.uid != first.identity.uid
    assert first.identity.home == "/home/alice"
    found = Path(first.host_home).stat()
    assert stat.S_IMODE(found.st_mode) == 0o700
    assert (found.st_uid, found.st_gid) == (first.identity.uid, first.identity.gid)
    assert stat.S_IMODE((tmp_path / "users.json").stat().st_mode) == 0o600


@needs_root
def test_an_id_that_the_machine_uses_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = pwd.getpwuid

    def taken(uid: int) -> pwd.struct_passwd:
        return real(0) if uid == FIRST_MANAGED_ID else real(uid)

    monkeypatch.setattr(pwd, "getpwuid", taken)
    assert book(tmp_path).account("alice").identity.uid == FIRST_MANAGED_ID + 1


@needs_root
def test_a_home_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "homes").mkdir()
    (tmp_path / "homes" / "alice").symlink_to("/etc")
    with pytest.raises(NameRefusedError, match="not a folder"):
        book(tmp_path).account("alice")


def entry(name: str, uid: int, home: Path) -> pwd.struct_passwd:
    """A line of /etc/passwd."""
    return pwd.struct_passwd((name, "x", uid, uid, "", str(home), "/bin/sh"))


def test_a_system_account_wins_where_wanted(tmp_path: Path) -> None:
    account = book(tmp_path, find_account=lambda name: entry(name, 1234, tmp_path)).account("alice")
    assert (account.identity.uid, account.host_home) == (1234, str(tmp_path))
    assert not account.is_managed
    assert 0 not in account.identity.groups


@pytest.mark.parametrize("uid", [0, 1, 999, 65534])
def test_nobody_becomes_a_system_user(tmp_path: Path, uid: int) -> None:
    with pytest.raises(NameRefusedError, match="only as ordinary users"):
        book(tmp_path, find_account=lambda name: entry(name, uid, tmp_path)).account("root")


def test_an_account_without_home_is_refused(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(NameRefusedError, match="has no home folder"):
        book(tmp_path, find_account=lambda name: entry(name, 1234, missing)).account("alice")


def test_every_sandbox_has_an_inner_root_of_its_own(tmp_path: Path) -> None:
    first = book(tmp_path).inner_root("s-1")
    assert book(tmp_path).inner_root("s-1") == first
    second = book(tmp_path).inner_root("s-2")
    assert second != first
    book(tmp_path).release("s-2")
    book(tmp_path).release("s-2")
    assert book(tmp_path).inner_root("s-3") not in {first, second}


def _name_everybody(folder: Path) -> None:
    for number in range(10):
        book(folder).account(f"user{number}")


@needs_root
def test_processes_that_write_at_once_agree(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_name_everybody, args=(tmp_path,)) for _ in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    ids = {book(tmp_path).account(f"user{number}").identity.uid for number in range(10)}
    assert ids == set(range(FIRST_MANAGED_ID, FIRST_MANAGED_ID + 10))
