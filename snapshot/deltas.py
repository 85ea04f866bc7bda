"""What changed inside a block since the earlier snapshot, page by page.

A block of which one page was written is a new chunk of 64 KiB. Where the earlier snapshot's chunks of
the same addresses lie on this node, they are opened and compared, byte by byte: pages that did not
change go on being those of the old chunks, and only the others are stored. What is not on this node is
not fetched for that: such blocks are stored whole, as are those that changed for the larger part or
would be made of pieces of too many chunks.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from snapshot.cache import PackCache
from snapshot.chunker import PAGE, Block, Piece
from snapshot.codec import ZERO, Body
from snapshot.errors import TamperedError
from snapshot.keys import UserKey
from snapshot.packs import purpose, unseal

MOST_CHANGED = 0.5
"""Blocks of which a larger share of pages changed are stored whole."""

MOST_CHUNKS = 8
"""Blocks that would consist of parts of more chunks are stored whole: each is one more to open."""

ONE_OF = 16
"""Where memory changed wholly, the first, second, fourth and eighth batch in a row are looked at, then
one of so many."""

_WORDS = PAGE // 8


class Kept(NamedTuple):
    """Pages that are those of an earlier chunk, from its page `first`."""

    vaddr: int
    pages: int
    name: bytes
    first: int


@dataclass(frozen=True, slots=True)
class Delta:
    """A block: what is kept of the earlier snapshot, and the pieces that are new, if any are."""

    kept: tuple[Kept, ...]
    changed: tuple[Piece, ...]


class Earlier:
    """The memory of an earlier snapshot, as far as it lies on this node. Safe to use from
    threads. `usable` are the names of its chunks that may be referred to."""

    def __init__(
        self, body: Body, usable: frozenset[bytes], user_key: UserKey, cache: PackCache
    ) -> None:
        self._body, self._user_key, self._cache = body, user_key, cache
        self._usable = usable
        self._spaces = {(space.kind, space.id): space.extents for space in body.spaces}
        self._ciphers: dict[int, AESGCM] = {}
        self._vain = 0
        self._lock = threading.Lock()

    def deltas(
        self, space: tuple[str, int], data: memoryview, blocks: Sequence[Block]
    ) -> dict[int, Delta]:
        """For blocks whose content is not stored yet: by its index, each that need not be stored
        whole. `data` is that of their batch."""
        extents = self._spaces.get(space)
        if extents is None or not len(extents) or not blocks or self._is_vain():
            return {}
        found = self._compare(extents, data, blocks)
        with self._lock:
            self._vain = 0 if found else self._vain + 1
        return found

    def _is_vain(self) -> bool:
        with self._lock:
            look = self._vain & (self._vain - 1) == 0 or self._vain % ONE_OF == 0
            self._vain += not look
            return not look

    def _compare(
        self, extents: np.ndarray, data: memoryview, blocks: Sequence[Block]
    ) -> dict[int, Delta]:
        pieces = [piece for block in blocks for piece in block.pieces]
        pages = np.concatenate([np.arange(p.pages) * PAGE + p.vaddr for p in pieces])
        places = np.concatenate([np.arange(p.pages) + p.start // PAGE for p in pieces])
        owners = np.repeat(
            np.arange(len(blocks)), [sum(p.pages for p in block.pieces) for block in blocks]
        )
        chunks, firsts = _lookup(extents, pages)
        words = np.frombuffer(data, np.uint64).reshape(-1, _WORDS)
        same = self._same(words, places, chunks, firsts)
        return {
            index: delta
            for index in range(len(blocks))
            if (delta := self._delta(pages, places, chunks, firsts, same, owners == index))
        }

    def _same(
        self, words: np.ndarray, places: np.ndarray, chunks: np.ndarray, firsts: np.ndarray
    ) -> np.ndarray:
        """Which of the pages at `places` are the page `firsts` of the earlier chunk `chunks`."""
        same = np.zeros(len(places), np.bool_)
        for number, content in self._contents(sorted({int(n) for n in chunks if n != ZERO})):
            those = np.flatnonzero(chunks == number)
            old = np.frombuffer(content, np.uint64).reshape(-1, _WORDS)[firsts[those]]
            same[those] = (words[places[those]] == old).all(axis=1)
        return same

    def _contents(self, numbers: Sequence[int]) -> Iterator[tuple[int, memoryview]]:
        """The content of those chunks that are on this node, sound, and may be referred to."""
        rows = self._body.chunks
        numbers = [n for n in numbers if rows["name"][n].tobytes() in self._usable]
        for pack, group in groupby(sorted(numbers, key=lambda n: int(rows["pack"][n])), self._pack):
            descriptor = self._cache.open(self._body.packs[pack].id)
            if descriptor is None:
                continue
            try:
                for number in group:
                    content = self._content(descriptor, number)
                    if content is not None:
                        yield number, content
            finally:
                os.close(descriptor)

    def _pack(self, number: int) -> int:
        return int(self._body.chunks["pack"][number])

    def _content(self, descriptor: int, number: int) -> memoryview | None:
        row = self._body.chunks[number]
        columns = ("pack", "offset", "stored", "size", "coding")
        pack, offset, stored, size, coding = (int(row[column]) for column in columns)
        sealed = os.pread(descriptor, stored, offset)
        out = memoryview(bytearray(size))
        try:
            unseal(self._cipher(pack), offset, sealed, row["name"].tobytes(), coding, out)
        except TamperedError:
            return None
        return out

    def _cipher(self, pack: int) -> AESGCM:
        if pack not in self._ciphers:
            entry = self._body.packs[pack]
            self._ciphers[pack] = AESGCM(
                self._user_key.unwrap(entry.wrapped_key, purpose(entry.id))
            )
        return self._ciphers[pack]

    def _delta(
        self,
        pages: np.ndarray,
        places: np.ndarray,
        chunks: np.ndarray,
        firsts: np.ndarray,
        same: np.ndarray,
        mine: np.ndarray,
    ) -> Delta | None:
        """The block of the pages that are `mine`, or None if it is better stored whole."""
        count, kept = int(mine.sum()), mine & same
        if not kept.any() or count - int(kept.sum()) > MOST_CHANGED * count:
            return None
        if len(set(chunks[kept].tolist())) >= MOST_CHUNKS:
            return None
        names = self._body.chunks["name"]
        rows = zip(*(a[kept].tolist() for a in (pages, chunks, firsts)), strict=True)
        old = [Kept(v, 1, names[number].tobytes(), first) for v, number, first in rows]
        rest = mine & ~same
        new = zip(pages[rest].tolist(), places[rest].tolist(), strict=True)
        return Delta(_joined(old), _pieces(new))


def _lookup(extents: np.ndarray, pages: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each page the earlier chunk that held its address, `ZERO` if none did, and which of the
    chunk's pages it was."""
    starts = extents["vaddr"].astype(np.int64)
    index = np.searchsorted(starts, pages, "right") - 1
    within = (pages - starts[index]) // PAGE
    held = (index >= 0) & (within < extents["pages"][index])
    chunks = np.where(held, extents["chunk"][index], ZERO)
    return chunks, extents["first"][index] + within


def _joined(kept: list[Kept]) -> tuple[Kept, ...]:
    """The same with neighbours made one."""
    result: list[Kept] = []
    for each in kept:
        if result:
            last = result[-1]
            behind = last.vaddr + last.pages * PAGE, last.name, last.first + last.pages
            if behind == (each.vaddr, each.name, each.first):
                result[-1] = last._replace(pages=last.pages + 1)
                continue
        result.append(each)
    return tuple(result)


def _pieces(pages: Iterator[tuple[int, int]]) -> tuple[Piece, ...]:
    """Pages, each with its place in the batch's data, as pieces."""
    result: list[Piece] = []
    for vaddr, place in pages:
        if result:
            last = result[-1]
            if last.vaddr + last.pages * PAGE == vaddr and last.start // PAGE + last.pages == place:
                result[-1] = last._replace(pages=last.pages + 1)
                continue
        result.append(Piece(vaddr, 1, place * PAGE))
    return tuple(result)
