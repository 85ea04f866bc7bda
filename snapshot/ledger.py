"""What a snapshot being written consists of so far. Knows names and places, no bytes."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from snapshot.chunker import PAGE, Block, Zeros
from snapshot.codec import CHUNK, EXTENT, NAME_BYTES, ZERO, Body, FileEntry, PackEntry, Space
from snapshot.deltas import Kept
from snapshot.naming import CURRENT
from snapshot.packs import Placed

TAKEN_OVER = 0.5
"""A pack of an earlier snapshot is taken over if at least this share of its bytes is still needed.
Less is stored again (the pages are at hand), so that old packs do not live on for a few pages each."""

_ExtentRow = tuple[int, int, int, int]
_ChunkRow = tuple[bytes, int, int, int, int, int]


@dataclass(slots=True)
class Known:
    """Chunks of an earlier snapshot that a new one may refer to."""

    packs: tuple[PackEntry, ...] = ()
    rows: dict[bytes, _ChunkRow] = field(default_factory=dict)
    body: Body | None = None

    @classmethod
    def of(cls, body: Body) -> Known:
        """The chunks of a verified manifest, but for those in packs that it needs little of; none
        if they are named in another way than ours."""
        if body.naming != CURRENT:
            return cls()
        needed = np.bincount(body.chunks["pack"], body.chunks["stored"], len(body.packs))
        dense = [float(n) >= TAKEN_OVER * p.size for n, p in zip(needed, body.packs, strict=True)]
        names = body.chunks["name"].tobytes()
        columns = (body.chunks[column].tolist() for column in (CHUNK.names or ())[1:])
        rows = {}
        for index, row in enumerate(zip(*columns, strict=True)):
            if not dense[row[0]]:
                continue
            name = names[index * NAME_BYTES : (index + 1) * NAME_BYTES]
            rows[name] = (name, *row)
        return cls(body.packs, rows, body)


class Ledger:
    """Numbers chunks and packs, and remembers which pages they are. Safe to use from threads."""

    def __init__(self, known: Known) -> None:
        self._lock = threading.Lock()
        self._known = known
        self._numbers: dict[bytes, int] = {}
        self._rows: list[_ChunkRow | None] = []
        self._packs: list[PackEntry] = []
        self._pack_numbers: dict[str, int] = {}
        self._extents: dict[tuple[str, int], list[_ExtentRow]] = {}
        self._files: dict[str, FileEntry] = {}
        self.reused_packs: set[str] = set()

    def unknown(self, names: Sequence[bytes]) -> list[int]:
        """The indices of those that are in no snapshot so far."""
        with self._lock:
            return [
                index
                for index, name in enumerate(names)
                if name not in self._numbers and name not in self._known.rows
            ]

    def claim(self, names: Sequence[bytes]) -> tuple[list[int], list[int]]:
        """The chunks' numbers, and the indices of those that the caller must now store: nobody
        else has them or is about to store them."""
        numbers, missing = [], []
        with self._lock:
            for index, name in enumerate(names):
                number = self._numbers.get(name)
                if number is None:
                    number = self._numbers[name] = len(self._rows)
                    self._rows.append(self._reuse(name))
                    if self._rows[number] is None:
                        missing.append(index)
                numbers.append(number)
        return numbers, missing

    def place(self, pack: PackEntry, chunks: Iterable[tuple[int, bytes, int, Placed]]) -> None:
        """A pack and the (number, name, size, place) of each chunk in it."""
        with self._lock:
            index = self._pack_number(pack)
            for number, name, size, placed in chunks:
                self._rows[number] = (
                    name,
                    index,
                    placed.offset,
                    placed.stored,
                    size,
                    placed.coding,
                )

    def add_pages(
        self,
        space: tuple[str, int],
        blocks: Sequence[Block],
        numbers: Sequence[int],
        zeros: Sequence[Zeros],
        kept: Sequence[Kept] = (),
    ) -> None:
        """Pages of an address space, with the number of each block's chunk, and those that are
        parts of chunks of the earlier snapshot."""
        rows: list[_ExtentRow] = [(zero.vaddr, zero.pages, ZERO, 0) for zero in zeros]
        for block, number in zip(blocks, numbers, strict=True):
            first = 0
            for piece in block.pieces:
                rows.append((piece.vaddr, piece.pages, number, first))
                first += piece.pages
        old, _ = self.claim([each.name for each in kept])
        rows += [
            (each.vaddr, each.pages, number, each.first)
            for each, number in zip(kept, old, strict=True)
        ]
        with self._lock:
            self._extents.setdefault(space, []).extend(rows)

    def add_file(self, name: str, size: int, numbers: Sequence[int]) -> None:
        with self._lock:
            self._files[name] = FileEntry(size, tuple(numbers))

    def body(self, facts: dict[str, Any], extra: dict[str, Any]) -> Body:
        """The manifest's body, once every claimed chunk was placed."""
        spaces = []
        for (kind, number), rows in sorted(self._extents.items()):
            extents = np.array(sorted(rows), EXTENT)
            spaces.append(Space(kind, number, joined(extents)))
        chunks = np.array(self._rows, CHUNK)
        packs = tuple(self._packs)
        return Body(facts, extra, packs, self._files, chunks, tuple(spaces), CURRENT)

    def memory_bytes(self) -> int:
        """Bytes of all pages, zero ones too."""
        return PAGE * sum(row[1] for rows in self._extents.values() for row in rows)

    def _reuse(self, name: bytes) -> _ChunkRow | None:
        row = self._known.rows.get(name)
        if row is None:
            return None
        pack = self._known.packs[row[1]]
        self.reused_packs.add(pack.id)
        return (name, self._pack_number(pack), *row[2:])

    def _pack_number(self, pack: PackEntry) -> int:
        number = self._pack_numbers.setdefault(pack.id, len(self._packs))
        if number == len(self._packs):
            self._packs.append(pack)
        return number


def joined(extents: np.ndarray) -> np.ndarray:
    """The extents with zero runs that touch made one, as they were cut by batches."""
    if len(extents) < 2:
        return extents
    ends = extents["vaddr"] + extents["pages"].astype(np.uint64) * np.uint64(PAGE)
    zero = extents["chunk"] == ZERO
    follows = np.zeros(len(extents), np.bool_)
    follows[1:] = zero[1:] & zero[:-1] & (ends[:-1] == extents["vaddr"][1:])
    firsts = np.flatnonzero(~follows)
    result = extents[firsts].copy()
    result["pages"] = np.add.reduceat(extents["pages"], firsts)
    return result
