"""Writing one snapshot: hashing, compression, encryption and upload side by side.

Pages wait in batches of 4 MiB for `workers` threads, which cut, name, and seal what is new into open
packs and put full ones into the `outbox`. Both are bounded: memory stays at about
`(workers + BATCHES_WAITING) * 4 MiB + (2 * workers + outbox.CONNECTIONS) * 8 MiB`, and when neither
the node cache nor the store takes more, whoever adds pages waits.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

from snapshot.cache import PackCache
from snapshot.chunker import BLOCK, Batch, Batcher, Block, cut
from snapshot.crew import Crew, given_up
from snapshot.deltas import Earlier, Kept
from snapshot.errors import MissingError
from snapshot.keys import UserKey
from snapshot.ledger import Known, Ledger
from snapshot.manifests import Summary, seal
from snapshot.model import SnapshotKey, Stored
from snapshot.names import pack_key, pack_prefix
from snapshot.naming import CURRENT, namer
from snapshot.outbox import Outbox
from snapshot.packs import Buffers, PackBuilder, Placed
from snapshot.stores.base import Store

log = logging.getLogger(__name__)

BATCHES_WAITING = 16
PROCESSORS_PER_UPLOAD = 4
"""While pages come. An upload takes a good part of one, and another if the store is on this machine."""

KINDS = ("task", "shmem")


class _OpenPack:
    """A pack being filled and what is in it."""

    def __init__(self, buffer: bytearray) -> None:
        self.builder = PackBuilder(buffer)
        self.chunks: list[tuple[int, bytes, int, Placed]] = []


class _Unit(NamedTuple):
    """What becomes one chunk: its name, its content and, if it is memory, where it belongs."""

    name: bytes
    content: memoryview
    block: Block = Block(())


class SnapshotWriter:
    """One snapshot on its way into the store. Nothing of it counts before `commit` returned.

    All methods may be called from several threads. The first failure of the work behind them is
    raised by the next call. Left as a context manager without a commit, it is aborted.
    """

    def __init__(
        self,
        store: Store,
        user_key: UserKey,
        key: SnapshotKey,
        facts: dict[str, Any],
        *,
        cache: PackCache | None,
        known: Known,
        workers: int,
        now: Callable[[], float],
    ) -> None:
        self._store, self._user_key = store, user_key
        self._key, self._facts, self._now = key, facts, now
        self._name = namer(user_key, CURRENT)
        self._ledger = Ledger(known)
        self._earlier = None
        if known.body is not None and cache is not None:
            self._earlier = Earlier(known.body, frozenset(known.rows), user_key, cache)
        self._lock = threading.Lock()
        self._lock_open = threading.Lock()
        self._batchers: dict[tuple[str, int], Batcher] = {}
        self._names: set[str] = set()
        self._open: dict[str, list[_OpenPack]] = {"pages": [], "files": []}
        self._lock_end = threading.Lock()
        self._finished = False  # the manifest is written, nobody gave up before
        self._given_up = False
        self._buffers = Buffers()
        self._sealers = Crew(workers, "seal", waiting=BATCHES_WAITING)
        self._outbox = Outbox(
            self._put_pack, cache, self._buffers, patient=workers // PROCESSORS_PER_UPLOAD
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.abort()

    def add_file(self, name: str, data: bytes) -> None:
        """Keep a file of the eager part. Raises `ValueError` for a name given twice."""
        with self._lock:
            if name in self._names:
                raise ValueError(f"the file {name!r} was added before")
            self._names.add(name)
        self._submit(lambda: self._keep_file(name, data))

    def add_pages(self, kind: str, id: int, vaddr: int, data: memoryview | bytes) -> None:
        """Keep pages of the task or shared memory `id`. They are copied before this returns.

        Addresses must ascend for each (kind, id). Raises `ValueError` for pages that are out of
        order, not aligned or not whole.
        """
        if kind not in KINDS:
            raise ValueError(f"pages belong to one of {KINDS}, not to {kind!r}")
        space = (kind, id)
        with self._lock:
            batcher = self._batchers.setdefault(space, Batcher())
            for batch in batcher.add(vaddr, memoryview(data).cast("B")):
                self._submit_pages(space, batch)

    def commit(self, extra: dict[str, Any]) -> Stored:
        """Make everything durable, then write the manifest. When this returns the snapshot exists;
        when it raises it does not, except after `StoreUnavailableError` from the very last step,
        where nobody knows.

        `extra["constraints"]` and `extra["timings"]`, if given, are shown in listings.
        """
        self._outbox.hurry()
        with self._lock:
            for space, batcher in self._batchers.items():
                if (batch := batcher.finish()) is not None:
                    self._submit_pages(space, batch)
        self._sealers.drain()
        for pack in (*self._open["files"], *self._open["pages"]):
            self._ship(pack)
        self._outbox.drain()
        self._check_reused()
        self._raise_failure()
        stored = self._write_manifest(extra)
        self._sealers.stop(wait=True)
        self._outbox.close()
        return stored

    def abort(self) -> None:
        """Give up, at once and for good: a commit under way in another thread raises, and if its
        manifest was on the way takes it back. Does nothing after a commit that was complete.

        Packs that were uploaded count for nothing and are collected later. Threads that are in the
        middle of an upload end with it.
        """
        with self._lock_end:
            if self._finished:
                return
            self._given_up = True
        self._sealers.fail(given_up())
        self._outbox.throw_away(given_up())
        self._sealers.stop(wait=False)

    def _submit(self, work: Callable[[], None]) -> None:
        self._raise_failure()
        self._sealers.submit(work)

    def _submit_pages(self, space: tuple[str, int], batch: Batch) -> None:
        self._submit(lambda: self._keep_pages(space, batch))

    def _raise_failure(self) -> None:
        self._sealers.check()
        self._outbox.check()

    def _keep_pages(self, space: tuple[str, int], batch: Batch) -> None:
        blocks, zeros = cut(batch)
        units = [self._unit(block, batch) for block in blocks]
        units, kept = self._without_kept(space, batch, units)
        numbers = self._keep("pages", units)
        self._ledger.add_pages(space, [unit.block for unit in units], numbers, zeros, kept)

    def _unit(self, block: Block, batch: Batch) -> _Unit:
        content = block.bytes_of(batch.data)
        return _Unit(self._name(content), content, block)

    def _without_kept(
        self, space: tuple[str, int], batch: Batch, units: list[_Unit]
    ) -> tuple[list[_Unit], list[Kept]]:
        """The units with those cut down to what changed of which parts lie in the earlier
        snapshot's chunks; and these parts."""
        if self._earlier is None:
            return units, []
        unknown = self._ledger.unknown([unit.name for unit in units])
        found = self._earlier.deltas(space, batch.data, [units[i].block for i in unknown])
        deltas = {unknown[index]: delta for index, delta in found.items()}
        rest = [unit for index, unit in enumerate(units) if index not in deltas]
        new = [Block(delta.changed) for delta in deltas.values() if delta.changed]
        kept = [part for delta in deltas.values() for part in delta.kept]
        return rest + [self._unit(block, batch) for block in new], kept

    def _keep_file(self, name: str, data: bytes) -> None:
        view = memoryview(data)
        parts = [view[start : start + BLOCK] for start in range(0, len(data), BLOCK)]
        units = [_Unit(self._name(part), part) for part in parts]
        self._ledger.add_file(name, len(data), self._keep("files", units))

    def _keep(self, shelf: str, units: Sequence[_Unit]) -> list[int]:
        """The numbers of the chunks; those that are new are put into a pack of that shelf."""
        numbers, missing = self._ledger.claim([unit.name for unit in units])
        if missing:
            self._seal(shelf, [(numbers[i], units[i]) for i in missing])
        return numbers

    def _seal(self, shelf: str, chunks: Sequence[tuple[int, _Unit]]) -> None:
        pack = self._take(shelf)
        for number, (name, content, _) in chunks:
            if not pack.builder.fits(len(content)):
                self._ship(pack)
                pack = _OpenPack(self._buffers.take())
            placed = pack.builder.add(name, content)
            pack.chunks.append((number, name, len(content), placed))
        with self._lock_open:
            self._open[shelf].append(pack)

    def _take(self, shelf: str) -> _OpenPack:
        with self._lock_open:
            if self._open[shelf]:
                return self._open[shelf].pop()
        return _OpenPack(self._buffers.take())

    def _ship(self, pack: _OpenPack) -> None:
        self._ledger.place(pack.builder.entry(self._user_key), pack.chunks)
        self._outbox.send(pack.builder.id, pack.builder.finish())

    def _put_pack(self, pack: str, data: bytearray) -> None:
        self._store.put(pack_key(self._key.owner, pack), data)

    def _check_reused(self) -> None:
        """Garbage collection must not have taken what this snapshot takes over from another."""
        reused = self._ledger.reused_packs
        if not reused:
            return
        prefix = pack_prefix(self._key.owner)
        there = {entry.key.removeprefix(prefix) for entry in self._store.list(prefix)}
        if not reused <= there:
            raise MissingError(
                f"{len(reused - there)} packs that this snapshot shares with an earlier one are gone.",
                remedy="Suspend again.",
            )

    def _write_manifest(self, extra: dict[str, Any]) -> Stored:
        summary = Summary(
            memory_bytes=self._ledger.memory_bytes(),
            stored_bytes=self._outbox.bytes,
            created_at=self._now(),
            constraints={str(k): str(v) for k, v in extra.get("constraints", {}).items()},
            timings={str(k): float(v) for k, v in extra.get("timings", {}).items()},
        )
        body = self._ledger.body(self._facts, extra)
        data, stored = seal(self._key, self._user_key, body, summary)
        self._store.put(stored.manifest, data, if_absent=True)
        with self._lock_end:
            self._finished = not self._given_up
        if not self._finished:
            self._store.delete(stored.manifest)
            raise given_up()
        return stored
