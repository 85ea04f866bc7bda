"""Reading one snapshot: what its manifest says, and its pages and files, verified.

Packs come from the node cache, else from the store: whole (and are then kept in the cache) when at
least half of one is wanted, else only the ranges wanted. Opening a chunk proves it (see `packs`). A
cached pack that fails is dropped and fetched again; one from the store that fails is an error.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import NDArray

from snapshot.cache import PackCache
from snapshot.chunker import PAGE
from snapshot.codec import PACK_MAGIC, ZERO, Body, PackEntry
from snapshot.errors import MissingError, TamperedError
from snapshot.keys import UserKey
from snapshot.model import SnapshotKey, Stored
from snapshot.names import pack_key
from snapshot.naming import namer
from snapshot.orders import Chunk, Opener, Order, Part, Sink, by_pack
from snapshot.packs import purpose
from snapshot.stores.base import Store

log = logging.getLogger(__name__)

FETCHERS = 16
_FILE_BITS = 48
START_FRESH = "Start the session fresh; the snapshot is kept as it is for inspection."

Runs = Sequence[tuple[int, int, int]]
"""(address, pages, target in bytes): pages of memory and where they belong in what is read into."""

_Pieces = tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]
"""Columns: chunk, first byte of it, length, target."""


def _parts(pieces: _Pieces) -> list[tuple[int, Part]]:
    """Pieces that are not zero, as (chunk, part)."""
    keep = pieces[0] != ZERO
    columns = (column[keep].tolist() for column in pieces)
    return [(number, Part(*part)) for number, *part in zip(*columns, strict=True)]


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
        self._ciphers: dict[str, AESGCM] = {}
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

    @property
    def user_key(self) -> UserKey:
        """The key that wraps its packs' keys."""
        return self._user_key

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
        return self.read_files([name])[name]

    def read_files(self, names: Iterable[str]) -> dict[str, bytes]:
        """Several files of the eager part, each pack opened once. Raises as `read_file`."""
        places: dict[str, int] = {}
        target, wanted = 0, []
        for name in names:
            if name not in self._body.files:
                raise MissingError(f"The snapshot {self.stored.manifest} has no file {name!r}.")
            places[name] = target
            for number in self._body.files[name].chunks:
                size = int(self._body.chunks["size"][number])
                wanted.append((number, Part(0, size, target)))
                target += size
        content = memoryview(bytearray(target))

        def sink(data: memoryview, target: int) -> None:
            content[target : target + len(data)] = data

        self._carry_out(self._orders(wanted), sink, whole=True)
        sizes = {name: self._body.files[name].size for name in places}
        return {name: bytes(content[at : at + sizes[name]]) for name, at in places.items()}

    def copy_pages(self, kind: str, id: int, runs: Runs, fd: int) -> None:
        """Write pages to a file: for each (vaddr, pages, file offset). Zero pages are left out,
        so the file must be new or zero there. Everything is written when this returns; after an
        error some of it may be. Raises `MissingError` for pages that the snapshot does not have."""
        self.copy_spaces([(kind, id, runs, fd)])

    def copy_spaces(self, wanted: Sequence[tuple[str, int, Runs, int]]) -> None:
        """The same for several (kind, id, runs, fd), each pack opened once."""
        files = [fd for *_, fd in wanted]
        pairs: list[tuple[int, Part]] = []
        for number, (kind, id, runs, _) in enumerate(wanted):
            begin = number << _FILE_BITS
            shifted = [(vaddr, pages, begin + target) for vaddr, pages, target in runs]
            pairs += self._wanted(kind, id, shifted)

        def sink(data: memoryview, target: int) -> None:
            fd, offset = files[target >> _FILE_BITS], target & (1 << _FILE_BITS) - 1
            while data:
                written = os.pwrite(fd, data, offset)
                data, offset = data[written:], offset + written

        self._carry_out(self._orders(pairs), sink)

    def plan(self, kind: str, id: int, runs: Runs) -> list[Order]:
        """What has to be read for these pages, pack by pack; zero pages are left out. Raises
        `MissingError` for pages that the snapshot does not have."""
        return self._orders(self._wanted(kind, id, runs))

    def _wanted(self, kind: str, id: int, runs: Runs) -> list[tuple[int, Part]]:
        return _parts(self._pieces(kind, id, runs))

    def plan_with_zeros(
        self, kind: str, id: int, runs: Runs
    ) -> tuple[list[Order], list[tuple[int, int]]]:
        """As `plan`, and (target, length) in bytes of those of the pages that are zero."""
        pieces = self._pieces(kind, id, runs)
        chunk, _, length, target = pieces
        zero = chunk == ZERO
        zeros = list(zip(target[zero].tolist(), length[zero].tolist(), strict=True))
        return self._orders(_parts(pieces)), zeros

    def is_cached(self, order: Order) -> bool:
        """Whether this node has the order's pack."""
        if self._cache is None:
            return False
        descriptor = self._cache.open(self._body.packs[order.pack].id)
        if descriptor is None:
            return False
        os.close(descriptor)
        return True

    def read(self, order: Order, sink: Sink, *, whole: bool = False, join: bool = True) -> None:
        """Carry out one order; `whole`: fetch all of the pack. Raises `MissingError`,
        `TamperedError`, and what the store does; `sink` may have got some of it then."""
        pack = self._body.packs[order.pack]
        cipher = self._cipher(pack)
        opener = Opener(order, cipher, sink, join=join)
        if self._cache is not None and self._from_cache(pack, opener, self._cache):
            return
        try:
            self._from_store(pack, order, opener, whole=whole)
        except MissingError as error:
            raise MissingError(
                f"The pack {pack.id} of the snapshot {self.stored.manifest} is gone.",
                remedy=START_FRESH,
            ) from error
        except TamperedError as error:
            raise self._tampered(pack) from error

    def verify(self) -> None:
        """Read everything from the store, not the cache, and take every hash again. Raises what is
        wrong first."""
        names = [chunk.name for chunk in self._chunks(range(len(self._body.chunks)))]
        name = namer(self._user_key, self._body.naming)

        def sink(data: memoryview, number: int) -> None:
            if name(data) != names[number]:
                raise TamperedError(f"Chunk {number} has another content than its name says.")

        sizes = self._body.chunks["size"].tolist()
        wanted = [(number, Part(0, size, number)) for number, size in enumerate(sizes)]
        uncached = Snapshot(
            self._store, self._user_key, None, self._workers, self._body, self.stored
        )
        uncached._carry_out(self._orders(wanted), sink, join=False)

    def _pieces(self, kind: str, id: int, runs: Runs) -> _Pieces:
        """The pieces of chunks that make up the runs, one after the other."""
        extents = self._spaces.get((kind, id))
        if extents is None:
            raise MissingError(f"The snapshot {self.stored.manifest} has no {kind} {id}.")
        starts = extents["vaddr"].astype(np.int64)
        ends = starts + extents["pages"].astype(np.int64) * PAGE
        vaddr, pages, target = np.array(runs, np.int64).reshape(-1, 3).T
        stop = vaddr + pages * PAGE
        low = np.searchsorted(ends, vaddr, "right")
        counts = np.maximum(np.searchsorted(starts, stop, "left") - low, 0)
        run = np.repeat(np.arange(len(runs)), counts)
        row = np.arange(len(run)) + np.repeat(low - (np.cumsum(counts) - counts), counts)
        begin = np.maximum(starts[row], vaddr[run])
        length = np.minimum(ends[row], stop[run]) - begin
        covered = np.bincount(run, length, len(runs)).astype(np.int64)
        if (lacking := np.flatnonzero(covered != pages * PAGE)).size:
            where = lacking[0]
            raise MissingError(
                f"The snapshot {self.stored.manifest} lacks pages of {kind} {id} "
                f"between {vaddr[where]:#x} and {stop[where]:#x}."
            )
        first = extents["first"][row].astype(np.int64) * PAGE + (begin - starts[row])
        return extents["chunk"][row], first, length, begin - vaddr[run] + target[run]

    def _chunks(self, numbers: Sequence[int]) -> list[Chunk]:
        rows = self._body.chunks[np.asarray(numbers, np.int64)]
        columns = [rows[name].tolist() for name in ("pack", "offset", "stored", "size", "coding")]
        raw = rows["name"].tobytes()
        width = len(raw) // len(numbers) if numbers else 0
        names = [raw[i * width : (i + 1) * width] for i in range(len(numbers))]
        return [Chunk(*row) for row in zip(numbers, names, *columns, strict=True)]

    def _orders(self, wanted: Iterable[tuple[int, Part]]) -> list[Order]:
        pairs = list(wanted)
        chunks = self._chunks([number for number, _ in pairs])
        return by_pack((chunk, part) for chunk, (_, part) in zip(chunks, pairs, strict=True))

    def _carry_out(
        self, orders: list[Order], sink: Sink, *, whole: bool = False, join: bool = True
    ) -> None:
        if len(orders) == 1:
            self.read(orders[0], sink, whole=whole, join=join)
            return
        all_here = all(self.is_cached(order) for order in orders)
        threads = self._workers if all_here else FETCHERS
        with ThreadPoolExecutor(max(threads, 1), "read") as pool:
            futures = [
                pool.submit(self.read, order, sink, whole=whole, join=join) for order in orders
            ]
            try:
                for future in futures:
                    future.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def _from_cache(self, pack: PackEntry, opener: Opener, cache: PackCache) -> bool:
        descriptor = cache.open(pack.id)
        if descriptor is None:
            return False
        try:
            opener.read_file(descriptor)
        except TamperedError as error:
            log.warning("the cached pack %s is damaged; it is fetched again: %s", pack.id, error)
            cache.drop(pack.id)
            return False
        finally:
            os.close(descriptor)
        return True

    def _from_store(self, pack: PackEntry, order: Order, opener: Opener, *, whole: bool) -> None:
        name = pack_key(self.key.owner, pack.id)
        if whole or order.wanted_bytes() * 2 >= pack.size:
            data = self._store.get(name)
            if len(data) != pack.size or not data.startswith(PACK_MAGIC):
                raise TamperedError(f"{len(data)} bytes instead of {pack.size}")
            opener.read_bytes(data, 0)
            if self._cache is not None:
                self._cache.put(pack.id, data)
            return
        for start, end, chunks in order.spans():
            opener.read_bytes(self._store.get(name, start=start, end=end), start, chunks)

    def _cipher(self, pack: PackEntry) -> AESGCM:
        if (cipher := self._ciphers.get(pack.id)) is None:
            try:
                cipher = AESGCM(self._user_key.unwrap(pack.wrapped_key, purpose(pack.id)))
            except TamperedError as error:
                raise self._tampered(pack) from error
            self._ciphers[pack.id] = cipher
        return cipher

    def _tampered(self, pack: PackEntry) -> TamperedError:
        return TamperedError(
            f"The pack {pack.id} of the snapshot {self.stored.manifest} is damaged or not the one "
            "that was stored.",
            remedy=START_FRESH,
        )
