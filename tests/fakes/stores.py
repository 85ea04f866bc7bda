"""Stores named by how they fail. Each wraps a real one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from snapshot.errors import AlreadyExistsError, MissingError, StoreUnavailableError
from snapshot.stores.base import Data, Entry, Size, Store, check_key


class StoreInMemory:
    """Does not fail. `modified` counts up with every write."""

    excludes = True

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self._modified: dict[str, float] = {}
        self._lock = threading.Lock()

    def put(self, key: str, data: Data, *, if_absent: bool = False) -> None:
        with self._lock:
            if if_absent and key in self.objects:
                raise AlreadyExistsError(key)
            self.objects[check_key(key)] = bytes(data)
            self._modified[key] = float(len(self._modified))

    def get(self, key: str, *, start: int | None = None, end: int | None = None) -> bytes:
        try:
            return self.objects[check_key(key)][start:end]
        except KeyError as error:
            raise MissingError(key) from error

    def head(self, key: str) -> Size | None:
        data = self.objects.get(check_key(key))
        return None if data is None else Size(len(data))

    def list(self, prefix: str) -> Iterator[Entry]:
        for key in sorted(self.objects):
            if key.startswith(prefix):
                yield Entry(key, Size(len(self.objects[key])), self._modified.get(key, 0.0))

    def delete(self, key: str) -> None:
        self.objects.pop(check_key(key), None)

    def sweep(self, before: float) -> int:
        return 0


@dataclass
class PassingOn:
    """Base of the failing ones: everything as the inner store does it."""

    inner: Store

    @property
    def excludes(self) -> bool:
        return self.inner.excludes

    def put(self, key: str, data: Data, *, if_absent: bool = False) -> None:
        self.inner.put(key, data, if_absent=if_absent)

    def get(self, key: str, *, start: int | None = None, end: int | None = None) -> bytes:
        return self.inner.get(key, start=start, end=end)

    def head(self, key: str) -> Size | None:
        return self.inner.head(key)

    def list(self, prefix: str) -> Iterator[Entry]:
        return self.inner.list(prefix)

    def delete(self, key: str) -> None:
        self.inner.delete(key)

    def sweep(self, before: float) -> int:
        return self.inner.sweep(before)


@dataclass
class StoreThatLosesTheAcknowledgement(PassingOn):
    """Carries out a write and then does not say so, for the first `times` writes."""

    times: int = 1

    def put(self, key: str, data: Data, *, if_absent: bool = False) -> None:
        self.inner.put(key, data, if_absent=if_absent)
        if self.times > 0:
            self.times -= 1
            raise StoreUnavailableError("the answer was lost")


@dataclass
class StoreThatIsDown(PassingOn):
    """Answers nothing for the first `times` calls (None: for ever), counting from when `down`."""

    times: int | None = None
    down: bool = True
    calls: int = 0

    def _ask(self) -> None:
        self.calls += 1
        if self.down and (self.times is None or self.calls <= self.times):
            raise StoreUnavailableError("the store is down")

    def put(self, key: str, data: Data, *, if_absent: bool = False) -> None:
        self._ask()
        self.inner.put(key, data, if_absent=if_absent)

    def get(self, key: str, *, start: int | None = None, end: int | None = None) -> bytes:
        self._ask()
        return self.inner.get(key, start=start, end=end)

    def head(self, key: str) -> Size | None:
        self._ask()
        return self.inner.head(key)

    def list(self, prefix: str) -> Iterator[Entry]:
        self._ask()
        return self.inner.list(prefix)

    def delete(self, key: str) -> None:
        self._ask()
        self.inner.delete(key)


@dataclass
class StoreThatDiesAfter(PassingOn):
    """Takes `writes` writes, then none for ever."""

    writes: int = 0
    refused: int = 0

    def put(self, key: str, data: Data, *, if_absent: bool = False) -> None:
        if self.writes <= 0:
            self.refused += 1
            raise StoreUnavailableError("the store died")
        self.writes -= 1
        self.inner.put(key, data, if_absent=if_absent)


@dataclass
class StoreWhoseClientDiesAfter(PassingOn):
    """Makes `changes` changes (None: any number), then nothing any more: its program is gone."""

    changes: int | None = None

    def _count(self) -> None:
        if self.changes is None:
            return
        if self.changes <= 0:
            raise StoreUnavailableError("this program has died")
        self.changes -= 1

    def put(self, key: str, data: Data, *, if_absent: bool = False) -> None:
        self._count()
        self.inner.put(key, data, if_absent=if_absent)

    def delete(self, key: str) -> None:
        self._count()
        self.inner.delete(key)


@dataclass
class StoreThatTruncates(PassingOn):
    """Reads of keys that begin with `prefix` end early, without saying so."""

    prefix: str = "packs/"

    def get(self, key: str, *, start: int | None = None, end: int | None = None) -> bytes:
        data = self.inner.get(key, start=start, end=end)
        return data[: len(data) * 2 // 3] if key.startswith(self.prefix) else data


@dataclass
class StoreThatFlipsABit(PassingOn):
    """One bit in the middle of what is read below `prefix` is wrong."""

    prefix: str = "packs/"

    def get(self, key: str, *, start: int | None = None, end: int | None = None) -> bytes:
        data = self.inner.get(key, start=start, end=end)
        if not key.startswith(self.prefix):
            return data
        damaged = bytearray(data)
        damaged[len(damaged) // 2] ^= 0x10
        return bytes(damaged)


@dataclass
class StoreThatCounts(PassingOn):
    """Does not fail; remembers what was asked for."""

    got: list[tuple[str, int | None, int | None]] = field(default_factory=list)
    written: list[str] = field(default_factory=list)

    def put(self, key: str, data: Data, *, if_absent: bool = False) -> None:
        self.written.append(key)
        self.inner.put(key, data, if_absent=if_absent)

    def get(self, key: str, *, start: int | None = None, end: int | None = None) -> bytes:
        self.got.append((key, start, end))
        return self.inner.get(key, start=start, end=end)


@dataclass
class StoreThatIsSlowToWrite(PassingOn):
    """Writes below `prefix` wait until `gate` is set; `waiting` counts the bytes that were held."""

    prefix: str = ""
    gate: threading.Event = field(default_factory=threading.Event)
    waiting: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def put(self, key: str, data: Data, *, if_absent: bool = False) -> None:
        held = key.startswith(self.prefix)
        with self._lock:
            self.waiting += len(data) * held
        if held and not self.gate.wait(60.0):
            raise StoreUnavailableError("nobody opened the gate")
        self.inner.put(key, data, if_absent=if_absent)


@dataclass
class StoreThatIsSlowToRead(PassingOn):
    """Reads below `prefix` wait until `gate` is set."""

    prefix: str = "packs/"
    gate: threading.Event = field(default_factory=threading.Event)

    def get(self, key: str, *, start: int | None = None, end: int | None = None) -> bytes:
        if key.startswith(self.prefix) and not self.gate.wait(60.0):
            raise StoreUnavailableError("nobody opened the gate")
        return self.inner.get(key, start=start, end=end)
