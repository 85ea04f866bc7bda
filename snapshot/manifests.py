"""Manifests: sealing and opening. The layout is `codec`'s.

The header says whose the manifest is and is bound to both seals, so one that was copied to another
owner's, session's or sequence's key is refused even by somebody who holds all the keys.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import zstandard
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from pydantic import TypeAdapter, ValidationError

from snapshot.codec import Body, Envelope, decode_body, encode_body, front, take_apart
from snapshot.errors import TamperedError
from snapshot.keys import Keys, UserKey, is_key_id
from snapshot.model import SnapshotKey, Stored
from snapshot.names import manifest_key
from snapshot.packs import purpose
from snapshot.sealing import TAG_BYTES, counter_nonce, new_key, open_into, seal_into

FRONT_BYTES = 16384
"""Enough for the header and the summary of any ordinary manifest."""

_SUMMARY, _BODY = 0, 1  # nonces: a manifest's data key seals these two and nothing else
_MAX_BODY = 8 * 2**30


@dataclass(frozen=True, slots=True)
class Summary:
    """What a listing shows."""

    memory_bytes: int
    stored_bytes: int
    created_at: float
    constraints: dict[str, str]
    timings: dict[str, float]


_ADAPTER = TypeAdapter(Summary)


def seal(key: SnapshotKey, user_key: UserKey, body: Body, summary: Summary) -> tuple[bytes, Stored]:
    """The manifest's bytes, and what a listing will say of it. The sealed body is added to the
    summary's `stored_bytes`."""
    packed = zstandard.ZstdCompressor(level=1).compress(encode_body(body))
    stored = Stored(
        manifest_key(key),
        key,
        summary.memory_bytes,
        summary.stored_bytes + len(packed),
        summary.created_at,
        summary.constraints,
        summary.timings,
    )
    return _sealed(stored, user_key, packed), stored


def reseal(stored: Stored, body: Body, old: UserKey, new: UserKey) -> bytes:
    """The same manifest under another key of its owner: the packs stay, their data keys are wrapped
    anew."""
    packs = tuple(
        replace(pack, wrapped_key=new.wrap(old.unwrap(pack.wrapped_key, use), use))
        for pack in body.packs
        for use in (purpose(pack.id),)
    )
    packed = zstandard.ZstdCompressor(level=1).compress(encode_body(replace(body, packs=packs)))
    return _sealed(stored, new, packed)


def _sealed(stored: Stored, user_key: UserKey, packed: bytes) -> bytes:
    key, name = stored.key, stored.manifest
    text = _ADAPTER.dump_json(_summary(stored))
    secret = new_key()
    head = front(_header(key, user_key.id, user_key.wrap(secret, name)), len(text) + TAG_BYTES)
    cipher = AESGCM(secret)
    out = bytearray(len(head) + len(text) + len(packed) + 2 * TAG_BYTES)
    view = memoryview(out)
    view[: len(head)] = head
    view = view[len(head) :]
    view = view[seal_into(cipher, counter_nonce(_SUMMARY), text, head, view) :]
    seal_into(cipher, counter_nonce(_BODY), packed, head, view)
    return bytes(out)


def read(key: SnapshotKey, data: bytes, keys: Keys) -> tuple[Body, Stored, UserKey]:
    """The manifest's content, and the user key that it and its packs are sealed under. Raises
    `TamperedError`, `NewerFormatError`, `KeyUnavailableError`."""
    envelope, cipher, user_key = _unlock(key, data, keys)
    stored = _stored(key, envelope, cipher)
    packed = _opened(cipher, _BODY, envelope.body, envelope.bound)
    try:
        body = zstandard.ZstdDecompressor().decompress(packed, max_output_size=_MAX_BODY)
    except zstandard.ZstdError as error:
        raise TamperedError("The manifest's body cannot be decompressed.") from error
    return decode_body(body), stored, user_key


def read_summary(key: SnapshotKey, data: bytes, keys: Keys) -> Stored:
    """What a listing shows, from the first `FRONT_BYTES` of a manifest. Raises as `read`."""
    envelope, cipher, _ = _unlock(key, data, keys)
    return _stored(key, envelope, cipher)


def _unlock(key: SnapshotKey, data: bytes, keys: Keys) -> tuple[Envelope, AESGCM, UserKey]:
    envelope = take_apart(data)
    header = envelope.header
    key_id, wrapped = header.get("user_key"), header.get("wrapped")
    if not isinstance(key_id, str) or not isinstance(wrapped, str) or not is_key_id(key_id):
        raise TamperedError("The manifest's header is damaged.")
    if header != _header(key, key_id, None, wrapped):
        raise TamperedError("The manifest belongs to another snapshot and was put in its place.")
    user_key = keys.get(key.owner, key_id)
    try:
        secret = user_key.unwrap(bytes.fromhex(wrapped), manifest_key(key))
    except ValueError as error:
        raise TamperedError("The manifest's header is damaged.") from error
    return envelope, AESGCM(secret), user_key


def _header(
    key: SnapshotKey, user_key: str, wrapped: bytes | None, text: str = ""
) -> dict[str, Any]:
    return {
        "owner": key.owner,
        "session": key.session,
        "epoch": key.epoch,
        "sequence": key.sequence,
        "user_key": user_key,
        "wrapped": wrapped.hex() if wrapped is not None else text,
    }


def _stored(key: SnapshotKey, envelope: Envelope, cipher: AESGCM) -> Stored:
    text = _opened(cipher, _SUMMARY, memoryview(envelope.summary), envelope.bound)
    try:
        summary = _ADAPTER.validate_json(text)
    except ValidationError as error:
        raise TamperedError("The manifest's summary is damaged.") from error
    return Stored(
        manifest_key(key),
        key,
        summary.memory_bytes,
        summary.stored_bytes,
        summary.created_at,
        summary.constraints,
        summary.timings,
    )


def _summary(stored: Stored) -> Summary:
    return Summary(
        stored.memory_bytes,
        stored.stored_bytes,
        stored.created_at,
        stored.constraints,
        stored.timings,
    )


def _opened(cipher: AESGCM, nonce: int, sealed: memoryview, bound: bytes) -> bytes:
    if len(sealed) < TAG_BYTES:
        raise TamperedError("The manifest was cut short.")
    out = bytearray(len(sealed) - TAG_BYTES)
    open_into(cipher, counter_nonce(nonce), sealed, bound, memoryview(out))
    return bytes(out)
