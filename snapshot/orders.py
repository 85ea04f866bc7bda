"""What is wanted of packs: chunks, and where their parts belong. Opening chunks of a pack.

Everything here works on one pack at a time, for `reader`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from snapshot.errors import TamperedError
from snapshot.packs import unseal

WINDOW = 2**20
"""Bytes read and opened at once: they stay in the processor's cache until they are written."""

GAP = 2**18
"""Ranges of a pack that are closer than this are fetched as one."""


_local = threading.local()


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
class Order:
    """What is wanted of one pack: chunks by offset, each with its parts."""

    pack: int
    chunks: list[Chunk] = field(default_factory=list)
    parts: dict[int, list[Part]] = field(default_factory=dict)

    def add(self, chunk: Chunk, part: Part) -> None:
        if chunk.number not in self.parts:
            self.chunks.append(chunk)
            self.parts[chunk.number] = []
        self.parts[chunk.number].append(part)

    def wanted_bytes(self) -> int:
        return sum(chunk.stored for chunk in self.chunks)

    def spans(self) -> Iterator[tuple[int, int, list[Chunk]]]:
        """Ranges of the pack that hold the wanted chunks."""
        span: list[Chunk] = []
        for chunk in self.chunks:
            if span and chunk.offset - span[-1].end > GAP:
                yield span[0].offset, span[-1].end, span
                span = []
            span.append(chunk)
        if span:
            yield span[0].offset, span[-1].end, span


def by_pack(wanted: Iterable[tuple[Chunk, Part]]) -> list[Order]:
    """One order for each pack, in the order in which packs are first wanted."""
    orders: dict[int, Order] = {}
    for chunk, part in wanted:
        order = orders.get(chunk.pack)
        if order is None:
            order = orders[chunk.pack] = Order(chunk.pack)
        order.add(chunk, part)
    for order in orders.values():
        order.chunks.sort(key=lambda chunk: chunk.offset)
    return list(orders.values())


class Opener:
    """Opens the chunks of one order and hands their parts on; with `join`, what is contiguous in
    one go."""

    def __init__(self, order: Order, cipher: AESGCM, sink: Sink, *, join: bool) -> None:
        self._order, self._cipher, self._sink, self._join = order, cipher, sink, join
        self._out = _buffer("out")

    def read_file(self, descriptor: int) -> None:
        """Read from a cached pack. Raises `TamperedError`, also if the disk cannot read it."""
        buffer = _buffer("sealed")
        for window in _windows(self._order.chunks):
            start, length = window[0].offset, window[-1].end - window[0].offset
            view = buffer[:length] if length <= len(buffer) else memoryview(bytearray(length))
            try:
                found = os.preadv(descriptor, [view], start)
            except OSError as error:
                raise TamperedError(f"A pack cannot be read: {error}.") from error
            if found != length:
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


def _buffer(name: str) -> memoryview:
    """`WINDOW` bytes of this thread's: made once, because memory that is new costs more than what
    is read into it. What is opened is handed on before the thread opens anything else."""
    found: memoryview | None = getattr(_local, name, None)
    if found is None:
        found = memoryview(bytearray(WINDOW))
        setattr(_local, name, found)
    return found


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
