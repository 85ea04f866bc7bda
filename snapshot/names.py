"""Names of objects in the store (pure).

`manifests/<owner>/<session>/<epoch>-<sequence>`, `packs/<owner>/<id>`, `keys/<owner>/<id>`,
`collected/<owner>/<run>` (what garbage collection noted in that run), and
`removed/<owner>/<session>/<epoch>-<sequence>` (marks of removed snapshots). Owner and session are written with letters,
digits, `.`, `_` and `-` as they are and every other byte of their UTF-8 as `=XX`; long ones as `~`
and base64. Both ways back are exact, so two names never meet.
"""

from __future__ import annotations

import base64
import re
from typing import Final

from snapshot.model import SnapshotKey

_PLAIN: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.")
_LONGEST_PLAIN: Final = 120
_LONGEST: Final = 240
_MANIFEST: Final = re.compile(r"manifests/([^/]+)/([^/]+)/(\d{10})-(\d{10})")


def escape(name: str) -> str:
    """One part of a key. Raises `ValueError` for an empty name or one of more than 178 bytes that
    is not mostly letters and digits."""
    raw = name.encode()
    text = "".join(
        chr(byte) if byte in _PLAIN and not (byte == 0x2E and index == 0) else f"={byte:02X}"
        for index, byte in enumerate(raw)
    )
    if len(text) > _LONGEST_PLAIN:
        text = "~" + base64.urlsafe_b64encode(raw).decode().rstrip("=")
    if not text or len(text) > _LONGEST:
        raise ValueError(f"names have 1 to {(_LONGEST - 1) * 3 // 4} bytes; this has {len(raw)}")
    return text


def unescape(text: str) -> str:
    """The name that `escape` wrote. Raises `ValueError`."""
    if text.startswith("~"):
        return base64.urlsafe_b64decode(text[1:] + "=" * (-(len(text) - 1) % 4)).decode()
    head, *rest = text.split("=")
    return b"".join(
        (head.encode(), *(bytes.fromhex(part[:2]) + part[2:].encode() for part in rest))
    ).decode()


def manifest_key(key: SnapshotKey) -> str:
    return f"{session_prefix(key.owner, key.session)}{key.epoch:010}-{key.sequence:010}"


def parse_manifest_key(text: str) -> SnapshotKey:
    """The snapshot that a manifest's key names. Raises `ValueError` for any other key."""
    wrong = f"not the key of a manifest: {text!r}"
    match = _MANIFEST.fullmatch(text)
    if match is None:
        raise ValueError(wrong)
    owner, session, epoch, sequence = match.groups()
    try:
        key = SnapshotKey(unescape(owner), unescape(session), int(epoch), int(sequence))
        exact = manifest_key(key) == text
    except ValueError as error:
        raise ValueError(wrong) from error
    if not exact:
        raise ValueError(wrong)
    return key


def manifest_prefix(owner: str | None = None, session: str | None = None) -> str:
    """What the keys of all manifests of an owner, or of an owner's session, begin with."""
    if owner is None:
        return "manifests/"
    return session_prefix(owner, session) if session is not None else f"manifests/{escape(owner)}/"


def session_prefix(owner: str, session: str) -> str:
    return f"manifests/{escape(owner)}/{escape(session)}/"


def pack_prefix(owner: str) -> str:
    return f"packs/{escape(owner)}/"


def pack_key(owner: str, pack: str) -> str:
    return pack_prefix(owner) + pack


def user_key_prefix(owner: str) -> str:
    return f"keys/{escape(owner)}/"


def collect_prefix(owner: str) -> str:
    return f"collected/{escape(owner)}/"


def collect_key(owner: str, run: int) -> str:
    return f"{collect_prefix(owner)}{run:010}"


def removal_prefix(owner: str) -> str:
    return f"removed/{escape(owner)}/"


def removal_key(key: SnapshotKey) -> str:
    return "removed/" + manifest_key(key).removeprefix("manifests/")


def owner_of(key: str) -> str | None:
    """Whose object it is, or None when that cannot be told."""
    parts = key.split("/")
    try:
        return unescape(parts[1]) if len(parts) > 2 else None
    except ValueError:
        return None
