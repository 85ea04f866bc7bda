"""Packs: sealed chunks side by side in one object, each pack with a data key of its own.

A chunk is sealed with its offset as nonce (the key is the pack's alone, so none repeats) and its
name as bound data. Opening it therefore proves that these bytes are what the holder of the user's
key put under that name: taking the hash again would prove nothing more, and costs eight times as
much as the decryption. `verify` of a snapshot does it nevertheless.
"""

from __future__ import annotations

import threading
import uuid
from typing import NamedTuple

import zstandard
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from snapshot.codec import PACK_MAGIC, RAW, ZSTD, PackEntry
from snapshot.errors import TamperedError
from snapshot.keys import UserKey
from snapshot.sealing import TAG_BYTES, Buffer, counter_nonce, new_key, open_into, seal_into

PACK_BYTES = 8 * 2**20
PROBE_BYTES = 4096
WORTH = 0.8
"""Content is stored compressed if that takes it below this share of its size."""

IN_A_ROW, ONE_OF = 8, 4
"""After so many contents that cannot be compressed only one of so many is tried, until one can: what
comes one after the other is alike, and even the probe costs as much as sealing does."""

_local = threading.local()


class Placed(NamedTuple):
    """Where a chunk lies in its pack, and how it is coded."""

    offset: int
    stored: int
    coding: int


class Buffers:
    """Room for packs, used again and again: memory that is new to a process costs as much as
    encrypting what is put into it. Safe to use from threads."""

    def __init__(self) -> None:
        self._free: list[bytearray] = []

    def take(self) -> bytearray:
        """One of `PACK_BYTES`, holding whatever."""
        try:
            return self._free.pop()
        except IndexError:
            return bytearray(PACK_BYTES)

    def give(self, buffer: bytearray) -> None:
        """Take one back that nobody else uses any more."""
        buffer.extend(bytes(PACK_BYTES - len(buffer)))
        self._free.append(buffer)


class PackBuilder:
    """One pack being filled in `data`, by one thread at a time."""

    def __init__(self, data: bytearray) -> None:
        self.id = uuid.uuid4().hex
        self._key = new_key()
        self._cipher = AESGCM(self._key)
        self._data = data
        self._data[: len(PACK_MAGIC)] = PACK_MAGIC
        self._end = len(PACK_MAGIC)

    def fits(self, size: int) -> bool:
        """Whether a chunk with `size` bytes of content surely has room."""
        return self._end + size + TAG_BYTES <= len(self._data)

    def add(self, name: bytes, content: Buffer) -> Placed:
        """Seal a chunk."""
        coding, coded = squeeze(content)
        offset = self._end
        with memoryview(self._data) as whole, whole[offset:] as room:
            stored = seal_into(self._cipher, counter_nonce(offset), coded, name, room)
        self._end += stored
        return Placed(offset, stored, coding)

    def finish(self) -> bytearray:
        """The pack, to which nothing can be added any more. Not a view: stores send a bytearray in
        one piece, anything else in many small ones."""
        del self._data[self._end :]
        return self._data

    def entry(self, user_key: UserKey) -> PackEntry:
        """Its line in a manifest."""
        wrapped = user_key.wrap(self._key, purpose(self.id))
        return PackEntry(self.id, self._end, wrapped)


def purpose(pack: str) -> str:
    """What a pack's data key is bound to when it is wrapped."""
    return f"pack {pack}"


def squeeze(content: Buffer) -> tuple[int, Buffer]:
    """The content as it is to be stored, decided by a probe."""
    vain = getattr(_local, "vain", 0)  # contents of this thread in a row that were not compressed
    if vain < IN_A_ROW or vain % ONE_OF == 0:
        packed = _compressed(content)
        if packed is not None:
            _local.vain = 0
            return ZSTD, packed
    _local.vain = vain + 1
    return RAW, content


def _compressed(content: Buffer) -> bytes | None:
    """The content compressed, or None if that does not pay. A page from its middle tells whether
    trying all of it does."""
    middle = len(content) // 2 // PROBE_BYTES * PROBE_BYTES
    sample = content[middle : middle + PROBE_BYTES]
    compressor = _compressor()
    if len(compressor.compress(sample)) > WORTH * len(sample):
        return None
    packed = compressor.compress(content)
    return packed if len(packed) <= WORTH * len(content) else None


def unseal(
    cipher: AESGCM, offset: int, sealed: Buffer, name: bytes, coding: int, out: memoryview
) -> None:
    """Open a chunk into `out`, which has the length of its content. Raises `TamperedError`."""
    if coding == RAW and len(sealed) == len(out) + TAG_BYTES:
        open_into(cipher, counter_nonce(offset), sealed, name, out)
        return
    if coding != ZSTD or len(sealed) < TAG_BYTES:
        raise TamperedError("A chunk has another length than its index says.")
    packed = bytearray(len(sealed) - TAG_BYTES)
    open_into(cipher, counter_nonce(offset), sealed, name, memoryview(packed))
    try:
        content = _decompressor().decompress(packed, max_output_size=len(out))
    except zstandard.ZstdError as error:
        raise TamperedError("A chunk cannot be decompressed.") from error
    if len(content) != len(out):
        raise TamperedError("A chunk has another length than its index says.")
    out[:] = content


def _compressor() -> zstandard.ZstdCompressor:
    """One per thread: they are not to be shared."""
    if not hasattr(_local, "compressor"):
        _local.compressor = zstandard.ZstdCompressor(level=1)
    found: zstandard.ZstdCompressor = _local.compressor
    return found


def _decompressor() -> zstandard.ZstdDecompressor:
    if not hasattr(_local, "decompressor"):
        _local.decompressor = zstandard.ZstdDecompressor()
    found: zstandard.ZstdDecompressor = _local.decompressor
    return found
