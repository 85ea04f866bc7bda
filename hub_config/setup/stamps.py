"""Stamps: what a finished step was made from. The same digest means: nothing to do."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Stamps:
    """One small file per step."""

    folder: Path

    def read(self, step: str) -> dict[str, Any]:
        """What was noted when the step last finished; empty if it never did."""
        try:
            found = json.loads((self.folder / f"{step}.json").read_text())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def is_current(self, step: str, digest: str, product: Path) -> bool:
        """Whether the step finished from the same inputs and its product still exists."""
        return product.exists() and self.read(step).get("digest") == digest

    def write(self, step: str, digest: str, **notes: Any) -> None:
        """Note that the step finished now."""
        self.folder.mkdir(parents=True, exist_ok=True)
        temporary = self.folder / f"{step}.new"
        content = {"digest": digest, "finished": time.time(), **notes}
        temporary.write_text(json.dumps(content, indent=2) + "\n")
        temporary.replace(self.folder / f"{step}.json")

    def forget(self, step: str) -> None:
        """A step that begins is unfinished, whatever a stamp of an earlier run says."""
        (self.folder / f"{step}.json").unlink(missing_ok=True)


def digest(values: Iterable[str], files: Iterable[Path] = ()) -> str:
    """A digest of plain values and of files' names and contents."""
    state = hashlib.sha256()
    for value in values:
        state.update(value.encode() + b"\0")
    for path in files:
        state.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return state.hexdigest()
