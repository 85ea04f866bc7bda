"""AES-256-GCM, in place where the installed library can."""

from __future__ import annotations

import os
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from snapshot.errors import TamperedError

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
TAG_BYTES: Final = 16
IN_PLACE: Final = hasattr(AESGCM, "decrypt_into")
"""About nine times as fast as `decrypt`, which makes a new object for each chunk."""

Buffer = bytes | bytearray | memoryview


def new_key() -> bytes:
    return os.urandom(KEY_BYTES)


def counter_nonce(number: int) -> bytes:
    """For keys that seal each number once."""
    return number.to_bytes(NONCE_BYTES, "big")


def seal_into(key: AESGCM, nonce: bytes, data: Buffer, bound: bytes, out: memoryview) -> int:
    """Seal `data` into the front of `out`; the length written (`TAG_BYTES` more than the data)."""
    length = len(data) + TAG_BYTES
    if IN_PLACE:
        return key.encrypt_into(nonce, data, bound, out[:length])
    out[:length] = key.encrypt(nonce, data, bound)
    return length


def open_into(key: AESGCM, nonce: bytes, sealed: Buffer, bound: bytes, out: memoryview) -> None:
    """Open `sealed` into `out`, which has exactly the length of the content.

    Raises `TamperedError`; `out` then holds nothing to rely on.
    """
    try:
        if IN_PLACE:
            key.decrypt_into(nonce, sealed, bound, out)
        else:
            out[:] = key.decrypt(nonce, sealed, bound)
    except (InvalidTag, ValueError) as error:
        raise TamperedError("Sealed data does not authenticate.") from error


def wrap(key: bytes, secret: bytes, bound: bytes) -> bytes:
    """A small secret sealed under a fresh nonce, which goes in front."""
    nonce = os.urandom(NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, secret, bound)


def unwrap(key: bytes, wrapped: bytes, bound: bytes) -> bytes:
    """The secret. Raises `TamperedError`."""
    try:
        return AESGCM(key).decrypt(wrapped[:NONCE_BYTES], wrapped[NONCE_BYTES:], bound)
    except (InvalidTag, ValueError) as error:
        raise TamperedError("A wrapped key does not authenticate.") from error
