"""Which backup of the key-encryption key exists: the fact, never the key.

Written by `hubernate keys export`, read by the doctor. It is about one key: after a rotation the old
backup no longer counts.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from hub_config.settings import write_json
from hub_config.setup.machine import Finding, Level
from snapshot.errors import SnapshotError
from snapshot.keyfiles import CURRENT, fingerprint, read_key

RECORD = "exported.json"


@dataclass(frozen=True, slots=True)
class Exported:
    """One export: of which key, when (UNIX seconds), where to (empty: handed on through a pipe), and
    whether that was on the same disk as the key itself."""

    key: str
    at: float
    path: str
    same_disk: bool


_ADAPTER = TypeAdapter(Exported)


def note_export(keys: Path, exported: Exported) -> None:
    """Remember the latest export."""
    write_json(keys / RECORD, asdict(exported))


def last_export(keys: Path) -> Exported | None:
    """The latest export, None where there was none or the note cannot be read."""
    try:
        return _ADAPTER.validate_json((keys / RECORD).read_bytes())
    except (OSError, ValidationError, json.JSONDecodeError):
        return None


def key_finding(keys: Path) -> Finding:
    """For the doctor: whether losing this disk would lose every snapshot."""
    try:
        current = fingerprint(read_key(keys / CURRENT))
    except (FileNotFoundError, PermissionError):
        return Finding("keys", Level.OK, "none yet, or not visible without root")
    except SnapshotError as error:
        return Finding("keys", Level.STOP, error.message, error.remedy)
    exported = last_export(keys)
    remedy = "hubernate keys export FILE, and keep FILE and its passphrase off this machine."
    if exported is None or exported.key != current:
        since = "" if exported is None else " (the backup is of a key from before the rotation)"
        text = f"{keys} holds the only copy of the key that opens every snapshot{since}."
        return Finding("keys", Level.WARN, text, remedy)
    if exported.same_disk and Path(exported.path).exists():
        text = f"the key's backup {exported.path} lies on the same disk as the key."
        return Finding("keys", Level.WARN, text, "Move it off this machine.")
    when = time.strftime("%Y-%m-%d", time.localtime(exported.at))
    return Finding("keys", Level.OK, f"a backup of the key was made on {when}")
