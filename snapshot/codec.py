"""The layout of packs and manifests (pure). Versioned; nothing here encrypts.

Pack: `PACK_MAGIC`, then sealed chunks one after another. Where each lies is only in manifests.

Manifest: `MANIFEST_MAGIC`, u16 version, u16 0, u32 length of the header, u32 length of the sealed
summary; the header (JSON, readable: whose it is and which key opens it); the sealed summary (JSON,
so that a listing need not read more than the front); the sealed body.

Body, after decryption and decompression: u32 length of a JSON object, the object, the table of
chunks, and for each address space its table of extents. Little-endian throughout.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from snapshot.errors import NewerFormatError, TamperedError

VERSION: Final = 2
"""2 says how chunks are named (`naming`); a body that does not say is of version 1."""

PACK_MAGIC: Final = b"HUBPACK\x01"
MANIFEST_MAGIC: Final = b"HUBSNAP\x00"
NAME_BYTES: Final = 20
ZERO: Final = 0xFFFFFFFF
"""In place of a chunk's number: the pages exist and are zero."""

RAW: Final = 0
ZSTD: Final = 1

CHUNK: Final = np.dtype(
    [
        ("name", f"V{NAME_BYTES}"),  # keyed hash of the content
        ("pack", "<u4"),  # index into the list of packs
        ("offset", "<u4"),  # of the sealed chunk in its pack; also its nonce
        ("stored", "<u4"),  # sealed length, with the tag
        ("size", "<u4"),  # length of the content
        ("coding", "u1"),
    ]
)
EXTENT: Final = np.dtype(
    [
        ("vaddr", "<u8"),
        ("pages", "<u4"),
        ("chunk", "<u4"),
        ("first", "<u4"),  # the first of these pages within the chunk
    ]
)
_FRONT: Final = struct.Struct("<8sHHII")
_LENGTH: Final = struct.Struct("<I")
MAX_HEADER: Final = 2**16


@dataclass(frozen=True, slots=True)
class PackEntry:
    """A pack and its data key, wrapped by the user's key."""

    id: str
    size: int
    wrapped_key: bytes


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file of the eager part: its length and the numbers of its chunks, in order."""

    size: int
    chunks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Space:
    """An address space: `kind` is task or shmem; `extents` is an array of `EXTENT` by address."""

    kind: str
    id: int
    extents: np.ndarray


@dataclass(frozen=True, slots=True)
class Body:
    """Everything a snapshot consists of. `chunks` is an array of `CHUNK`; `naming` is how they got
    their names."""

    facts: dict[str, Any]
    extra: dict[str, Any]
    packs: tuple[PackEntry, ...]
    files: dict[str, FileEntry]
    chunks: np.ndarray
    spaces: tuple[Space, ...]
    naming: int = 1


@dataclass(frozen=True, slots=True)
class Envelope:
    """A manifest taken apart, still sealed. `bound` is what both seals authenticate as well."""

    header: dict[str, Any]
    bound: bytes
    summary: bytes
    body: memoryview


def front(header: dict[str, Any], summary_length: int) -> bytes:
    """The readable front of a manifest."""
    text = json.dumps(header, separators=(",", ":"), sort_keys=True).encode()
    return _FRONT.pack(MANIFEST_MAGIC, VERSION, 0, len(text), summary_length) + text


def take_apart(data: bytes) -> Envelope:
    """A manifest's parts; `data` may end after the summary (the body is then cut short or empty).

    Raises `TamperedError` and `NewerFormatError`.
    """
    if len(data) < _FRONT.size or not data.startswith(MANIFEST_MAGIC):
        raise TamperedError("This is no manifest of a snapshot, or it was cut short.")
    _, version, _, header_length, summary_length = _FRONT.unpack_from(data)
    if version > VERSION:
        raise NewerFormatError(
            f"The snapshot has format {version}; this program knows up to {VERSION}.",
            remedy="Resume it with the newer version.",
        )
    end = _FRONT.size + header_length
    if header_length > MAX_HEADER or len(data) < end + summary_length:
        raise TamperedError("The manifest was cut short.")
    header = _json(data[_FRONT.size : end])
    view = memoryview(data)
    return Envelope(
        header, data[:end], data[end : end + summary_length], view[end + summary_length :]
    )


def encode_body(body: Body) -> bytes:
    """The body's bytes, not yet compressed and sealed."""
    document = {
        "facts": body.facts,
        "extra": body.extra,
        "packs": [[pack.id, pack.size, pack.wrapped_key.hex()] for pack in body.packs],
        "files": {name: [file.size, *file.chunks] for name, file in body.files.items()},
        "chunks": len(body.chunks),
        "naming": body.naming,
        "spaces": [[space.kind, space.id, len(space.extents)] for space in body.spaces],
    }
    text = json.dumps(document, separators=(",", ":")).encode()
    tables = (body.chunks.tobytes(), *(space.extents.tobytes() for space in body.spaces))
    return b"".join((_LENGTH.pack(len(text)), text, *tables))


def decode_body(data: bytes) -> Body:
    """The body. Raises `TamperedError` when its parts do not fit together."""
    try:
        (length,) = _LENGTH.unpack_from(data)
        document = json.loads(data[4 : 4 + length])
        chunks, position = _table(data, 4 + length, CHUNK, document["chunks"])
        spaces = []
        for kind, number, count in document["spaces"]:
            extents, position = _table(data, position, EXTENT, count)
            spaces.append(Space(kind, number, extents))
        if position != len(data):
            raise ValueError("bytes left over")
        body = Body(
            facts=document["facts"],
            extra=document["extra"],
            packs=tuple(PackEntry(i, n, bytes.fromhex(key)) for i, n, key in document["packs"]),
            files={
                name: FileEntry(size, tuple(numbers))
                for name, (size, *numbers) in document["files"].items()
            },
            chunks=chunks,
            spaces=tuple(spaces),
            naming=int(document.get("naming", 1)),
        )
        _check(body)
    except (ValueError, LookupError, TypeError, struct.error) as error:
        raise TamperedError(f"The manifest's body does not fit together ({error}).") from error
    return body


def _table(data: bytes, start: int, kind: np.dtype, count: int) -> tuple[np.ndarray, int]:
    end = start + count * kind.itemsize
    if count < 0 or end > len(data):
        raise ValueError("a table is cut short")
    return np.frombuffer(data, kind, count, start), end


def _check(body: Body) -> None:
    """References lead to things that exist, and lengths agree."""
    if body.naming not in {1, 2}:
        raise ValueError("chunks named in an unknown way")
    if len(body.chunks):
        if int(body.chunks["pack"].max()) >= len(body.packs):
            raise ValueError("a chunk in no pack")
        sizes = np.array([pack.size for pack in body.packs], np.uint64)
        ends = body.chunks["offset"].astype(np.uint64) + body.chunks["stored"]
        if (ends > sizes[body.chunks["pack"]]).any():
            raise ValueError("a chunk behind the end of its pack")
    for file in body.files.values():
        if sum(int(body.chunks["size"][number]) for number in file.chunks) != file.size:
            raise ValueError("a file of another length than its chunks")
    for space in body.spaces:
        _check_extents(space.extents, body.chunks)


def _check_extents(extents: np.ndarray, chunks: np.ndarray) -> None:
    ends = extents["vaddr"] + extents["pages"].astype(np.uint64) * np.uint64(4096)
    if (extents["vaddr"][1:] < ends[:-1]).any():
        raise ValueError("extents overlap or are not in order")
    kept = extents[extents["chunk"] != ZERO]
    if not len(kept):
        return
    if int(kept["chunk"].max()) >= len(chunks):
        raise ValueError("an extent of no chunk")
    needed = (kept["first"].astype(np.uint64) + kept["pages"]) * np.uint64(4096)
    if (needed > chunks["size"][kept["chunk"]]).any():
        raise ValueError("an extent behind the end of its chunk")


def _json(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError as error:
        raise TamperedError("The manifest's header is damaged.") from error
    if not isinstance(value, dict):
        raise TamperedError("The manifest's header is damaged.")
    return value
