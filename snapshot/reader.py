"""Reading one snapshot: what its manifest says, and its pages and files, verified.

Packs come from the node cache, else from the store: whole (and are then kept in the cache) when at
least half of one is wanted, else only the ranges wanted. Opening a chunk proves it (see `packs`). A
cached pack that fails is dropped and fetched again; one from the store that fails is an error.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from snapshot.cache import PackCache
from snapshot.chunker import PAGE
from snapshot.codec import PACK_MAGIC, ZERO, Body, PackEntry
from snapshot.errors import MissingError, TamperedError
from snapshot.keys import UserKey
from snapshot.model import SnapshotKey, Stored
from snapshot.names import pack_key
from snapshot.packs import purpose, unseal
from snapshot.stores.base import Store

log = logging.getLogger(__name__)

WINDOW = 2**20
"""Bytes read and opened at once: they stay in the processor's cache until they are written."""

GAP = 2**18
"""Ranges of a pack that are closer than this are fetched as one."""

FETCHERS = 16
START_FRESH = "Start the session fresh; the snapshot is kept as it is for inspection."


class Chunk(NamedTuple):
    """One row of the chunk table, as Python objects, and its number."""

    number: int
    name: bytes
    pack: int
    offset: int
    stored: int
    size: int
    coding: int

    @property
    def end(self) -> int:
        return self.offset + self.stored


class Part(NamedTuple):
    """Bytes of a chunk, from `first`, that belong at `target` of a file."""

    first: int
    length: int
    target: int


Sink = Callable[[memoryview, int], None]
"""Takes bytes and where they belong. May keep nothing of them."""


@dataclass(slots=True)
class _Order:
    """What is wanted of one pack: chunks by offset, each with its parts."""

    pack: int
    chunks: list[Chunk] = field(default_factory=list)
    parts: dict[int, list[Part]] = field(default_factory=dict)

    def add(self, chunk: Chunk, part: Part) -> None:
        if chunk.number not in self.parts:
            self.chunks.append(chunk)
            self.parts[chunk.number] = []
        self.parts[chunk.number].append(part)


class Snapshot:
    """A verified manifest and the way to what it refers to. Safe to use from threads."""

    def __init__(
        self,
        store: Store,
        user_key: UserKey,
        cache: PackCache | None,
        workers: int,
        body: Body,
        stored: Stored,
    ) -> None:
        self._store, self._user_key, self._cache, self._workers = store, user_key, cache, workers
        self._body = body
        self._spaces = {(space.kind, space.id): space.extents for space in body.spaces}
        self.stored = stored

    @property
    def key(self) -> SnapshotKey:
        return self.stored.key

    @property
    def facts(self) -> dict[str, Any]:
        """What the writer knew at the start."""
        return self._body.facts

    @property
    def extra(self) -> dict[str, Any]:
        """What the writer added at the commit."""
        return self._body.extra

    @property
    def memory_bytes(self) -> int:
        """Bytes of all pages, zero ones too."""
        return self.stored.memory_bytes

    @property
    def body(self) -> Body:
        """The manifest's content, for those that work on many snapshots (pruning, new ones)."""
        return self._body

    def sealed_by(self, user_key: UserKey) -> bool:
        """Whether this key names and wraps its chunks."""
        return user_key.id == self._user_key.id

    def file_names(self) -> tuple[str, ...]:
        return tuple(self._body.files)

    def spaces(self) -> tuple[tuple[str, int], ...]:
        """The (kind, id) of every address space."""
        return tuple(self._spaces)

    def read_file(self, name: str) -> bytes:
        """A file of the eager part. Raises `MissingError`, `TamperedError`."""
        entry = self._body.files.get(name)
        if entry is None:
            raise MissingError(f"The snapshot {self.stored.manifest} has no file {name!r}.")
        content = memoryview(bytearray(entry.size))

        def sink(data: memoryview, target: int) -> None:
            content[target : target + len(data)] = data

        target, wanted = 0, []
        for number in entry.chunks:
            size = int(self._body.chunks["size"][number])
            wanted.append((number, Part(0, size, target)))
            target += size
        self._carry_out(self._orders(wanted), sink, whole=True)
        return bytes(content)

    def copy_pages(self, kind: str, id: int, runs: Sequence[tuple[int, int, int]], fd: int) -> None:
        """Write pages to a file: for each (vaddr, pages, file offset). Zero pages are left out,
        so the file must be new or zero there. Everything is written when this returns; after an
        error some of it may be. Raises `MissingError` for pages that the snapshot does not have."""

        def sink(data: memoryview, target: int) -> None:
            while data:
                written = os.pwrite(fd, data, target)
                data, target = data[written:], target + written

        self._carry_out(self._orders(self._wanted(kind, id, runs)), sink)

    def verify(self) -> None:
        """Read everything from the store, not the cache, and take every hash again. Raises what is
        wrong first."""
        names = [chunk.name for chunk in self._chunks(range(len(self._body.chunks)))]

        def sink(data: memoryview, number: int) -> None:
            if self._user_key.name(data) != names[number]:
                raise TamperedError(f"Chunk {number} has another content than its name says.")

        sizes = self._body.chunks["size"].tolist()
        wanted = [(number, Part(0, size, number)) for number, size in enumerate(sizes)]
        uncached = Snapshot(
            self._store, self._user_key, None, self._workers, self._body, self.stored
        )
        uncached._carry_out(self._orders(wanted), sink, join=False)

    def _wanted(
        self, kind: str, id: int, runs: Sequence[tuple[int, int, int]]
    ) -> Iterator[tuple[int, Part]]:
        """The parts of chunks that make up the runs."""
        extents = self._spaces.get((kind, id))
        if extents is None:
            raise MissingError(f"The snapshot {self.stored.manifest} has no {kind} {id}.")
        starts = extents["vaddr"].astype(np.int64)
        ends = starts + extents["pages"].astype(np.int64) * PAGE
        for vaddr, pages, target in runs:
            stop = vaddr + pages * PAGE
            low = int(np.searchsorted(ends, vaddr, "right"))
            high = int(np.searchsorted(starts, stop, "left"))
            begin = np.maximum(starts[low:high], vaddr)
            length = np.minimum(ends[low:high], stop) - begin
            if int(length.sum()) != pages * PAGE:
                raise MissingError(
                    f"The snapshot {self.stored.manifest} lacks pages of {kind} {id} "
                    f"between {vaddr:#x} and {stop:#x}."
                )
            rows = extents[low:high]
            first = rows["first"].astype(np.int64) * PAGE + (begin - starts[low:high])
            keep = rows["chunk"] != ZERO
            columns = (rows["chunk"], first, length, begin - vaddr + target)
            for number, *part in zip(*(c[keep].tolist() for c in columns), strict=True):
                yield number, Part(*part)

    def _chunks(self, numbers: Sequence[int]) -> list[Chunk]:
        rows = self._body.chunks[np.asarray(numbers, np.int64)]
        columns = [rows[name].tolist() for name in ("pack", "offset", "stored", "size", "coding")]
        raw = rows["name"].tobytes()
        width = len(raw) // len(numbers) if numbers else 0
        names = [raw[i * width : (i + 1) * width] for i in range(len(numbers))]
        return [Chunk(*row) for row in zip(numbers, names, *columns, strict=True)]

    def _orders(self, wanted: Iterator[tuple[int, Part]] | list[tuple[int, Part]]) -> list[_Order]:
        pairs = list(wanted)
        orders: dict[int, _Order] = {}
        for chunk, (_, part) in zip(self._chunks([n for n, _ in pairs]), pairs, strict=True):
            order = orders.get(chunk.pack)
            if order is None:
                order = orders[chunk.pack] = _Order(chunk.pack)
            order.add(chunk, part)
        for order in orders.values():
            order.chunks.sort(key=lambda chunk: chunk.offset)
        return list(orders.values())

    def _carry_out(
        self, orders: list[_Order], sink: Sink, *, whole: bool = False, join: bool = True
    ) -> None:
        if len(orders) == 1:
            self._serve(orders[0], sink, whole=whole, join=join)
            return
        here = [order for order in orders if self._is_cached(order)]
        threads = self._workers if len(here) == len(orders) else FETCHERS
        with ThreadPoolExecutor(max(threads, 1), "read") as pool:
            futures = [
                pool.submit(self._serve, order, sink, whole=whole, join=join) for order in orders
            ]
            try:
                for future in futures:
                    future.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def _is_cached(self, order: _Order) -> bool:
        if self._cache is None:
            return False
        descriptor = self._cache.open(self._body.packs[order.pack].id)
        if descriptor is None:
            return False
        os.close(descriptor)
        return True

    def _serve(self, order: _Order, sink: Sink, *, whole: bool, join: bool) -> None:
        """One pack's part of the work."""
        pack = self._body.packs[order.pack]
        cipher = self._cipher(pack)
        opener = _Opener(order, cipher, sink, join=join)
        if self._cache is not None and self._from_cache(pack, opener, self._cache):
            return
        try:
            self._from_store(pack, opener, whole=whole)
        except MissingError as error:
            raise MissingError(
                f"The pack {pack.id} of the snapshot {self.stored.manifest} is gone.",
                remedy=START_FRESH,
            ) from error
        except TamperedError as error:
            raise self._tampered(pack) from error

    def _from_cache(self, pack: PackEntry, opener: _Opener, cache: PackCache) -> bool:
        descriptor = cache.open(pack.id)
        if descriptor is None:
            return False
        try:
            opener.read_file(descriptor)
        except TamperedError:
            log.warning("the cached pack %s is damaged; it is fetched again", pack.id)
            cache.drop(pack.id)
            return False
        finally:
            os.close(descriptor)
        return True

    def _from_store(self, pack: PackEntry, opener: _Opener, *, whole: bool) -> None:
        name = pack_key(self.key.owner, pack.id)
        if whole or opener.wanted_bytes() * 2 >= pack.size:
            data = self._store.get(name)
            if len(data) != pack.size or not data.startswith(PACK_MAGIC):
                raise TamperedError(f"{len(data)} bytes instead of {pack.size}")
            opener.read_bytes(data, 0)
            if self._cache is not None:
                self._cache.put(pack.id, data)
            return
        for start, end, chunks in opener.spans():
            opener.read_bytes(self._store.get(name, start=start, end=end), start, chunks)

    def _cipher(self, pack: PackEntry) -> AESGCM:
        try:
            return AESGCM(self._user_key.unwrap(pack.wrapped_key, purpose(pack.id)))
        except TamperedError as error:
            raise self._tampered(pack) from error

    def _tampered(self, pack: PackEntry) -> TamperedError:
        return TamperedError(
            f"The pack {pack.id} of the snapshot {self.stored.manifest} is damaged or not the one "
            "that was stored.",
            remedy=START_FRESH,
        )


class _Opener:
    """Opens the chunks of one order and hands their parts on."""

    def __init__(self, order: _Order, cipher: AESGCM, sink: Sink, *, join: bool) -> None:
        self._order, self._cipher, self._sink, self._join = order, cipher, sink, join
        self._out = memoryview(bytearray(WINDOW))

    def wanted_bytes(self) -> int:
        return sum(chunk.stored for chunk in self._order.chunks)

    def spans(self) -> Iterator[tuple[int, int, list[Chunk]]]:
        """Ranges of the pack that hold the wanted chunks."""
        span: list[Chunk] = []
        for chunk in self._order.chunks:
            if span and chunk.offset - span[-1].end > GAP:
                yield span[0].offset, span[-1].end, span
                span = []
            span.append(chunk)
        if span:
            yield span[0].offset, span[-1].end, span

    def read_file(self, descriptor: int) -> None:
        """Read from a cached pack. Raises `TamperedError`."""
        buffer = memoryview(bytearray(WINDOW))
        for window in _windows(self._order.chunks):
            start, length = window[0].offset, window[-1].end - window[0].offset
            view = buffer[:length] if length <= len(buffer) else memoryview(bytearray(length))
            if os.preadv(descriptor, [view], start) != length:
                raise TamperedError("A pack is cut short.")
            self._open(window, view, start)

    def read_bytes(self, data: bytes, base: int, chunks: list[Chunk] | None = None) -> None:
        """Read from bytes that begin at `base` of the pack. Raises `TamperedError`."""
        view = memoryview(data)
        for window in _windows(self._order.chunks if chunks is None else chunks):
            if window[-1].end - base > len(data):
                raise TamperedError("A pack is cut short.")
            self._open(window, view[window[0].offset - base :], window[0].offset)

    def _open(self, window: list[Chunk], sealed: memoryview, base: int) -> None:
        """Open a window's chunks side by side and hand on what is contiguous in one go."""
        position = 0
        run_start, run_target, run_length = 0, 0, 0
        for chunk in window:
            if position + chunk.size > len(self._out):
                self._hand_on(run_start, run_length, run_target)
                position, run_length = 0, 0
            start = chunk.offset - base
            out = self._out[position : position + chunk.size]
            piece = sealed[start : start + chunk.stored]
            unseal(self._cipher, chunk.offset, piece, chunk.name, chunk.coding, out)
            for first, length, target in self._order.parts[chunk.number]:
                begins = position + first
                follows = begins == run_start + run_length and target == run_target + run_length
                if run_length and follows and self._join:
                    run_length += length
                    continue
                self._hand_on(run_start, run_length, run_target)
                run_start, run_target, run_length = begins, target, length
            position += chunk.size
        self._hand_on(run_start, run_length, run_target)

    def _hand_on(self, start: int, length: int, target: int) -> None:
        if length:
            self._sink(self._out[start : start + length], target)


def _windows(chunks: list[Chunk]) -> Iterator[list[Chunk]]:
    """Groups of chunks within `WINDOW` bytes of the pack (one chunk alone may be larger)."""
    window: list[Chunk] = []
    for chunk in chunks:
        if window and chunk.end - window[0].offset > WINDOW:
            yield window
            window = []
        window.append(chunk)
    if window:
        yield window
