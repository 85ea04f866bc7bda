"""CRIU's image files: those we write (pagemaps), those we read and change (open files).

Pure. Protobuf is read as fields of (number, wire type, value), so that what we do not know is kept
byte for byte. Layout: u32 magic, u32 type magic, then u32 length and a record, repeated.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

PAGE = 4096
COMMON_MAGIC = 0x54564319
PAGEMAP_MAGIC = 0x56084025
_PRESENT = 4
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

Field = tuple[int, int, int | bytes]
"""(field number, wire type, value): an int, or the bytes of a length-delimited field."""


class ImageError(Exception):
    """An image file is not what it should be."""


@dataclass(frozen=True, slots=True)
class PagemapEntry:
    """A run of pages; `flags` as CRIU gave them (4: present, 2: may come lazily)."""

    vaddr: int
    pages: int
    flags: int

    @property
    def is_present(self) -> bool:
        return bool(self.flags & _PRESENT)


@dataclass(frozen=True, slots=True)
class Pagemap:
    """One memory: which file its pages are in, and its runs in file order."""

    pages_id: int
    entries: tuple[PagemapEntry, ...]

    def runs(self) -> list[tuple[int, int, int]]:
        """(address, pages, offset in the pages file) of every run that is present."""
        found, offset = [], 0
        for entry in self.entries:
            if entry.is_present:
                found.append((entry.vaddr, entry.pages, offset))
                offset += entry.pages * PAGE
        return found

    def file_bytes(self) -> int:
        """Length of the pages file."""
        return sum(entry.pages for entry in self.entries if entry.is_present) * PAGE


def merged(entries: Iterable[PagemapEntry]) -> tuple[PagemapEntry, ...]:
    """The same with neighbours of one kind as one run: CRIU sends a megabyte at a time."""
    found: list[PagemapEntry] = []
    for entry in entries:
        last = found[-1] if found else None
        if last and last.flags == entry.flags and last.vaddr + last.pages * PAGE == entry.vaddr:
            found[-1] = PagemapEntry(last.vaddr, last.pages + entry.pages, entry.flags)
        else:
            found.append(entry)
    return tuple(found)


def pagemap_name(kind: str, id: int) -> str:
    """The pagemap's file name for a task or a shared memory."""
    return f"pagemap-shmem-{id}.img" if kind == "shmem" else f"pagemap-{id}.img"


def parse_pagemap_name(name: str) -> tuple[str, int]:
    """(kind, id) of a pagemap's file name. Raises `ValueError`."""
    middle = name.removeprefix("pagemap-").removesuffix(".img")
    kind = "shmem" if middle.startswith("shmem-") else "task"
    return kind, int(middle.removeprefix("shmem-"))


def write_pagemap(pagemap: Pagemap) -> bytes:
    """The pagemap image."""
    records = [encode([(1, _VARINT, pagemap.pages_id)])]
    for entry in pagemap.entries:
        numbers = ((1, entry.vaddr), (2, 0), (4, entry.flags), (5, entry.pages))
        records.append(encode([(number, _VARINT, value) for number, value in numbers]))
    return join(PAGEMAP_MAGIC, records)


def read_pagemap(data: bytes) -> Pagemap:
    """Parse a pagemap image. Raises `ImageError`."""
    magic, records = split(data)
    if magic != PAGEMAP_MAGIC or not records:
        raise ImageError("not a pagemap")
    entries = []
    for record in records[1:]:
        values = {number: value for number, _, value in decode(record) if isinstance(value, int)}
        pages = values.get(5) or values.get(2, 0)
        entries.append(PagemapEntry(values[1], pages, values.get(4, 0)))
    head = {number: value for number, _, value in decode(records[0]) if isinstance(value, int)}
    return Pagemap(head[1], tuple(entries))


_VMAS, _VMA_START, _VMA_END, _VMA_ADVICE = 14, 1, 2, 9
_WIPE_ON_FORK = 1 << 18


def wiped_at_fork(data: bytes) -> list[int]:
    """Where memory begins and ends, in turn, that a forked child finds empty (`mm-N.img`,
    MADV_WIPEONFORK). Addresses ascend. Raises `ImageError`."""
    edges: list[int] = []
    for number, _, value in (each for record in split(data)[1] for each in decode(record)):
        if number == _VMAS and isinstance(value, bytes):
            vma = {n: v for n, _, v in decode(value) if isinstance(v, int)}
            if vma.get(_VMA_ADVICE, 0) & _WIPE_ON_FORK:
                edges += (vma[_VMA_START], vma[_VMA_END])
    return sorted(edges)


@dataclass(frozen=True, slots=True)
class RegularFile:
    """An open or mapped regular file of a frozen tree: path inside, size at the dump (or -1)."""

    id: int
    name: str
    size: int


_REGULAR = 3
_ID, _NAME, _SIZE, _CONTENT_CHECKS = 1, 6, 8, (8, 11, 12, 13, 14)


def regular_files(data: bytes) -> tuple[RegularFile, ...]:
    """The regular files in `files.img`. Raises `ImageError`."""
    found = []
    for record in split(data)[1]:
        for number, _, value in decode(record):
            if number == _REGULAR and isinstance(value, bytes):
                fields = {n: v for n, _, v in decode(value)}
                name, size = fields.get(_NAME, b""), fields.get(_SIZE, -1)
                if isinstance(name, bytes) and isinstance(size, int):
                    found.append(RegularFile(int(fields[_ID]), name.decode(), size))
    return tuple(found)


def numbers(data: bytes, field: int) -> frozenset[int]:
    """The values of one number field over all records of an image."""
    return frozenset(
        value
        for record in split(data)[1]
        for number, _, value in decode(record)
        if number == field and isinstance(value, int)
    )


def remapped_ids(data: bytes) -> frozenset[int]:
    """Ids of files that had no name any more (`remap-fpath.img`): CRIU brings them itself."""
    return numbers(data, 1)


def open_ids(data: bytes) -> frozenset[int]:
    """Ids of the files that descriptors of one task refer to (`fdinfo-N.img`)."""
    return numbers(data, 1)


@dataclass(frozen=True, slots=True)
class Change:
    """What to alter of one regular file's record: no check of size and build id, another name."""

    unchecked: bool = False
    name: str = ""


def change_regular_files(data: bytes, changes: dict[int, Change]) -> bytes:
    """`files.img` with the records of these file ids altered; all else stays as it was."""
    magic, records = split(data)
    return join(magic, [_change_entry(record, changes) for record in records])


def _change_entry(record: bytes, changes: dict[int, Change]) -> bytes:
    fields = list(decode(record))
    return encode(
        (number, wire, _change_file(value, changes))
        if number == _REGULAR and isinstance(value, bytes)
        else (number, wire, value)
        for number, wire, value in fields
    )


def _change_file(record: bytes, changes: dict[int, Change]) -> bytes:
    fields = list(decode(record))
    change = changes.get(next(int(value) for number, _, value in fields if number == _ID))
    if change is None:
        return record
    if change.unchecked:
        fields = [item for item in fields if item[0] not in _CONTENT_CHECKS]
    if change.name:
        fields = [
            (number, wire, change.name.encode() if number == _NAME else value)
            for number, wire, value in fields
        ]
    return encode(fields)


def split(data: bytes) -> tuple[int, list[bytes]]:
    """Type magic and records of an image. Raises `ImageError`."""
    if len(data) < 8 or struct.unpack_from("<I", data)[0] != COMMON_MAGIC:
        raise ImageError("not an image file of CRIU")
    magic = struct.unpack_from("<I", data, 4)[0]
    records, position = [], 8
    while position < len(data):
        (length,) = struct.unpack_from("<I", data, position)
        position += 4
        if position + length > len(data):
            raise ImageError("the image file is cut short")
        records.append(data[position : position + length])
        position += length
    return magic, records


def join(magic: int, records: Iterable[bytes]) -> bytes:
    """An image of these records."""
    parts = [struct.pack("<II", COMMON_MAGIC, magic)]
    for record in records:
        parts += [struct.pack("<I", len(record)), record]
    return b"".join(parts)


def decode(record: bytes) -> Iterator[Field]:
    """The fields of a protobuf message, in order. Raises `ImageError`."""
    position = 0
    while position < len(record):
        key, position = _read_varint(record, position)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, position = _read_varint(record, position)
            yield number, wire, value
            continue
        if wire == _BYTES:
            length, position = _read_varint(record, position)
        elif wire in (_FIXED32, _FIXED64):
            length = 4 if wire == _FIXED32 else 8
        else:
            raise ImageError(f"unknown wire type {wire}")
        if position + length > len(record):
            raise ImageError("a record is cut short")
        yield number, wire, record[position : position + length]
        position += length


def encode(fields: Iterable[Field]) -> bytes:
    """A protobuf message of these fields."""
    out = bytearray()
    for number, wire, value in fields:
        out += _varint(number << 3 | wire)
        if isinstance(value, int):
            out += _varint(value)
            continue
        if wire == _BYTES:
            out += _varint(len(value))
        out += value
    return bytes(out)


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(data):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise ImageError("a number is cut short")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
