"""A backup of the key-encryption keys that only its passphrase opens.

One JSON document: how the passphrase becomes a key (scrypt, with its salt and cost), the ids of the
keys inside, and the keys sealed with AES-256-GCM; the readable part is bound to the seal. It can be
printed, mailed or put into a safe: guessing the passphrase costs 128 MiB and about half a second a
try.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping
from typing import Any, Final

from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from snapshot.errors import KeyUnavailableError, NewerFormatError, TamperedError
from snapshot.keyfiles import fingerprint
from snapshot.sealing import KEY_BYTES, unwrap, wrap

FORMAT: Final = "hubernate key backup"
VERSION: Final = 1
SHORTEST_PASSPHRASE: Final = 12
_COST: Final = 2**17
_COSTLIEST: Final = 2**20
_BLOCK: Final = 8
_SALT_BYTES: Final = 16


def seal_backup(keys: Mapping[str, bytes], passphrase: str) -> bytes:
    """The backup. Raises `KeyUnavailableError` when there is no key, or for a passphrase that is
    too short."""
    if not keys:
        raise KeyUnavailableError(
            "There is no key-encryption key yet.", remedy="It is made with the first snapshot."
        )
    if len(passphrase) < SHORTEST_PASSPHRASE:
        raise KeyUnavailableError(
            f"The passphrase has {len(passphrase)} characters.",
            remedy=f"Use {SHORTEST_PASSPHRASE} or more, such as five words.",
        )
    salt = os.urandom(_SALT_BYTES)
    front = {
        "format": FORMAT,
        "version": VERSION,
        "scrypt": {"n": _COST, "r": _BLOCK, "p": 1, "salt": salt.hex()},
        "keys": list(keys),
    }
    content = json.dumps({name: base64.b64encode(key).decode() for name, key in keys.items()})
    sealed = wrap(_derive(passphrase, salt, _COST), content.encode(), _bound(front))
    return json.dumps(front | {"sealed": base64.b64encode(sealed).decode()}, indent=2).encode()


def open_backup(data: bytes, passphrase: str) -> dict[str, bytes]:
    """The keys by id, the one that was current first. Raises `TamperedError`, also for a wrong
    passphrase, and `NewerFormatError`."""
    try:
        document: dict[str, Any] = json.loads(data)
        if document["format"] != FORMAT:
            raise ValueError("not a backup of keys")
        if document["version"] != VERSION:
            raise NewerFormatError("The backup was made by a newer version of this program.")
        cost, salt = document["scrypt"]["n"], bytes.fromhex(document["scrypt"]["salt"])
        sealed = base64.b64decode(document.pop("sealed"), validate=True)
        if document["scrypt"]["r"] != _BLOCK or document["scrypt"]["p"] != 1:
            raise ValueError("other parameters than ours")
        if not isinstance(cost, int) or not _COST <= cost <= _COSTLIEST or cost & (cost - 1):
            raise ValueError("a cost out of bounds")
    except (ValueError, LookupError, TypeError) as error:
        raise TamperedError("This is no backup of keys, or it is damaged.") from error
    try:
        content = unwrap(_derive(passphrase, salt, cost), sealed, _bound(document))
    except TamperedError as error:
        raise TamperedError(
            "The backup does not open.", remedy="The passphrase is wrong, or the file was changed."
        ) from error
    return _checked(json.loads(content))


def _checked(content: dict[str, str]) -> dict[str, bytes]:
    keys = {name: base64.b64decode(text) for name, text in content.items()}
    for name, key in keys.items():
        if len(key) != KEY_BYTES or fingerprint(key) != name:
            raise TamperedError(f"The backup holds another key than {name} under that id.")
    return keys


def _derive(passphrase: str, salt: bytes, cost: int) -> bytes:
    return Scrypt(salt, KEY_BYTES, cost, _BLOCK, 1).derive(passphrase.encode())


def _bound(front: Mapping[str, Any]) -> bytes:
    return json.dumps(front, sort_keys=True).encode()
