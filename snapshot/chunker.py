"""Pages to chunks (pure).

Memory is cut into blocks of `BLOCK` bytes at multiples of `BLOCK` in the address space that the
pages belong to, never by their place in a stream or file: an unchanged block gives the same chunk
next time, whatever came before it. Pages of zeros are noted and not kept, so a block's chunk is what
is left of it, in the order of addresses.

64 KiB: it is what one page fault should bring along; AES-GCM in place is as fast with it as with
1 MiB (14 and 17 GB/s on two cores), and smaller blocks would make Python's share of the work and
the index grow while larger ones store more for each scattered write.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

PAGE = 4096
BLOCK = 16 * PAGE
BATCH = 4 * 2**20

Flags = np.ndarray[Any, np.dtype[np.bool_]]


class Piece(NamedTuple):
    """Pages that follow one another in memory and, from byte `start`, in the batch's data."""

    vaddr: int
    pages: int
    start: int


class Block(NamedTuple):
    """The pages of one block that are not zero: one chunk."""

    pieces: tuple[Piece, ...]

    def bytes_of(self, data: memoryview) -> memoryview:
        """The chunk's content; without a copy if its pieces lie side by side in the data."""
        first, last = self.pieces[0], self.pieces[-1]
        end = last.start + last.pages * PAGE
        if end - first.start == sum(piece.pages for piece in self.pieces) * PAGE:
            return data[first.start : end]
        parts = (data[piece.start : piece.start + piece.pages * PAGE] for piece in self.pieces)
        return memoryview(b"".join(parts))


class Zeros(NamedTuple):
    """Pages that exist and are zero."""

    vaddr: int
    pages: int


@dataclass(frozen=True, slots=True)
class Batch:
    """A run of whole blocks of one address space. `pieces` say where each part of `data` belongs."""

    pieces: tuple[Piece, ...]
    data: memoryview


@dataclass(slots=True)
class Batcher:
    """Collects the pages of one address space into batches of about `BATCH` bytes that end where
    a block ends, so that no block is torn apart. Copies what it is given."""

    _pieces: list[Piece] = field(default_factory=list)
    _data: bytearray = field(default_factory=bytearray)
    _end: int = 0

    def add(self, vaddr: int, data: memoryview) -> Iterator[Batch]:
        """Take pages; give the batches that became full. Raises `ValueError` for pages that are not
        whole, not aligned, or not behind the ones before."""
        if vaddr % PAGE or len(data) % PAGE or not len(data):
            raise ValueError(f"{len(data)} bytes at {vaddr:#x} are not whole pages")
        if vaddr < self._end:
            raise ValueError(f"pages at {vaddr:#x} come after {self._end:#x}, not in order")
        while data:
            if len(self._data) >= BATCH and vaddr // BLOCK != (self._end - 1) // BLOCK:
                yield self._cut()
            room = max(BATCH - len(self._data), 0)
            edge = (vaddr + room + BLOCK - 1) // BLOCK * BLOCK
            if room == 0:
                edge = (vaddr // BLOCK + 1) * BLOCK
            part = data[: edge - vaddr]
            self._pieces.append(Piece(vaddr, len(part) // PAGE, len(self._data)))
            self._data += part
            vaddr += len(part)
            self._end = vaddr
            data = data[len(part) :]

    def finish(self) -> Batch | None:
        """What is left."""
        return self._cut() if self._pieces else None

    def _cut(self) -> Batch:
        batch = Batch(tuple(self._pieces), memoryview(self._data))
        self._pieces, self._data = [], bytearray()
        return batch


def cut(batch: Batch) -> tuple[list[Block], list[Zeros]]:
    """The batch's blocks and its zero pages, both by ascending address."""
    present = _not_zero(np.frombuffer(batch.data, np.uint64).reshape(-1, PAGE // 8))
    blocks: list[Block] = []
    zeros: list[Zeros] = []
    pending: list[Piece] = []
    for piece in batch.pieces:
        for kept in _split(piece, present, zeros):
            if pending and pending[0].vaddr // BLOCK != kept.vaddr // BLOCK:
                blocks.append(Block(tuple(pending)))
                pending = []
            pending.append(kept)
    if pending:
        blocks.append(Block(tuple(pending)))
    return blocks, zeros


def _not_zero(pages: np.ndarray) -> Flags:
    """Which pages hold anything. Few that do begin with zeros, and only those are read through."""
    present: Flags = np.asarray(pages[:, 0] != 0)
    suspects = np.flatnonzero(~present)
    present[suspects] = pages[suspects].any(axis=1)
    return present


def _split(piece: Piece, present: Flags, zeros: list[Zeros]) -> Iterator[Piece]:
    """The parts of a piece that are not zero, none reaching over the end of a block."""
    first = piece.start // PAGE
    flags = present[first : first + piece.pages]
    edges = [0, *(np.flatnonzero(flags[1:] != flags[:-1]) + 1).tolist(), piece.pages]
    for begin, end in pairwise(edges):
        vaddr = piece.vaddr + begin * PAGE
        if not flags[begin]:
            zeros.append(Zeros(vaddr, end - begin))
            continue
        start, stop = piece.start + begin * PAGE, piece.vaddr + end * PAGE
        while vaddr < stop:
            length = min((vaddr // BLOCK + 1) * BLOCK, stop) - vaddr
            yield Piece(vaddr, length // PAGE, start)
            vaddr += length
            start += length
