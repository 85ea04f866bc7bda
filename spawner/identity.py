"""Which account a user's sandboxes run as on this machine.

A system account of the same name is used where that is wanted; everybody else gets a managed
account: a user id of the book's own range, a home in its folder, no entry in /etc/passwd. Ids once
given out are never given to somebody else. The book is one JSON file, changed under a lock.
"""

from __future__ import annotations

import fcntl
import grp
import json
import os
import pwd
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from pydantic import TypeAdapter

from snapshot.model import Identity

FIRST_MANAGED_ID = 210_000
LAST_MANAGED_ID = 999_999
FIRST_ORDINARY_ID = 1000
NOBODY = 65534

_NAME = re.compile(r"[a-z0-9_][a-z0-9_.@+-]{0,62}")


class NameRefusedError(ValueError):
    """No sandbox can run for a user of this name; the message says why and what helps."""


@dataclass(frozen=True, slots=True)
class Account:
    """An identity and where its home lies on the host (inside it is `identity.home`)."""

    identity: Identity
    host_home: str
    is_managed: bool


@dataclass(frozen=True, slots=True)
class _Pages:
    """What the book's file holds. `inner_roots` numbers the sandboxes that exist."""

    version: int = 1
    users: dict[str, int] = field(default_factory=dict)
    inner_roots: dict[str, int] = field(default_factory=dict)
    next_inner_root: int = 0


_PAGES = TypeAdapter(_Pages)


def check_name(name: str) -> str:
    """The name, if it is safe as a folder, an account and a part of a path.

    Raises `NameRefusedError`.
    """
    if not _NAME.fullmatch(name):
        raise NameRefusedError(
            f"{name!r} cannot be a user here: names have 1 to 63 lower-case letters, digits or"
            " _ . @ + - and begin with a letter, a digit or _."
        )
    return name


def inner_home(name: str) -> str:
    """Where a user's home is seen inside a sandbox."""
    return f"/home/{name}"


class IdentityBook:
    """The accounts of one machine. Safe to use from several processes.

    `homes` is where managed homes are made (default: `homes` beside the file). Does file I/O and
    waits for the lock; a write takes a few milliseconds.
    """

    def __init__(
        self,
        users_file: Path | str,
        *,
        homes: Path | str | None = None,
        use_system_accounts: bool = True,
        first_inner_root: int = 1_000_000,
        find_account: Callable[[str], pwd.struct_passwd] = pwd.getpwnam,
    ) -> None:
        self._file = Path(users_file)
        self._homes = Path(homes) if homes else self._file.parent / "homes"
        self._use_system_accounts = use_system_accounts
        self._first_inner_root = first_inner_root
        self._find_account = find_account

    def identity(self, name: str) -> Identity:
        """The identity of a user; a managed account is made if there is none yet.

        Raises `NameRefusedError`.
        """
        return self.account(name).identity

    def account(self, name: str) -> Account:
        """The same with the home's place on the host. The home exists. Raises
        `NameRefusedError`."""
        check_name(name)
        system = self._system_account(name) if self._use_system_accounts else None
        return system or self._managed_account(name)

    def inner_root(self, sandbox: str) -> int:
        """The host id that the namespace root of this sandbox maps to: its own, and the same on
        every call until `release`."""
        with self._locked() as pages:
            number = pages.inner_roots.get(sandbox)
            if number is None:
                number = pages.next_inner_root
                roots = {**pages.inner_roots, sandbox: number}
                self._write(replace(pages, inner_roots=roots, next_inner_root=number + 1))
        return self._first_inner_root + number

    def release(self, sandbox: str) -> None:
        """The sandbox and its snapshots are gone. Its id is not used again. May be repeated."""
        with self._locked() as pages:
            if sandbox in pages.inner_roots:
                roots = {k: v for k, v in pages.inner_roots.items() if k != sandbox}
                self._write(replace(pages, inner_roots=roots))

    def _system_account(self, name: str) -> Account | None:
        try:
            entry = self._find_account(name)
        except KeyError:
            return None
        if entry.pw_uid < FIRST_ORDINARY_ID or entry.pw_uid == NOBODY:
            raise NameRefusedError(
                f"{name!r} is a system account of this machine (user id {entry.pw_uid}); sessions"
                " run only as ordinary users. Choose another user name."
            )
        groups = tuple(sorted(set(os.getgrouplist(name, entry.pw_gid)) - {0, entry.pw_gid}))
        identity = Identity(name, entry.pw_uid, entry.pw_gid, groups, inner_home(name))
        home = Path(entry.pw_dir)
        if home == Path("/") or not home.is_dir():
            raise NameRefusedError(
                f"The account {name!r} has no home folder ({entry.pw_dir}). Create it first."
            )
        return Account(identity, str(home), is_managed=False)

    def _managed_account(self, name: str) -> Account:
        with self._locked() as pages:
            uid = pages.users.get(name)
            if uid is None:
                uid = _free_id(pages.users.values())
                self._write(replace(pages, users={**pages.users, name: uid}))
            home = self._make_home(name, uid)
        identity = Identity(name, uid, uid, (), inner_home(name))
        return Account(identity, str(home), is_managed=True)

    def _make_home(self, name: str, uid: int) -> Path:
        """A folder 0700 that belongs to the user. Only root can write where it lies."""
        self._homes.mkdir(mode=0o711, parents=True, exist_ok=True)
        home = self._homes / name
        try:
            home.mkdir(mode=0o700)
        except FileExistsError:
            if not stat.S_ISDIR(home.lstat().st_mode):
                raise NameRefusedError(f"{home} exists and is not a folder.") from None
            return home
        os.chown(home, uid, uid, follow_symlinks=False)
        return home

    @contextmanager
    def _locked(self) -> Iterator[_Pages]:
        lock = self._file.with_name(self._file.name + ".lock")
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield self._read()
        finally:
            os.close(descriptor)

    def _read(self) -> _Pages:
        try:
            return _PAGES.validate_json(self._file.read_bytes())
        except FileNotFoundError:
            return _Pages()

    def _write(self, pages: _Pages) -> None:
        temporary = self._file.with_name(self._file.name + ".new")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as handle:
            json.dump(asdict(pages), handle)
            handle.flush()
            os.fsync(descriptor)
        temporary.replace(self._file)


def _free_id(given: Iterable[int]) -> int:
    """The next id after those given out that no account or group of the machine has."""
    candidate = max(given, default=FIRST_MANAGED_ID - 1) + 1
    while _exists(candidate):
        candidate += 1
    if candidate > LAST_MANAGED_ID:
        raise NameRefusedError("All user ids for managed accounts are given out.")
    return candidate


def _exists(number: int) -> bool:
    for find in (pwd.getpwuid, grp.getgrgid):
        try:
            find(number)
        except KeyError:
            continue
        return True
    return False
