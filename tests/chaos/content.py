"""Memory whose every byte is known: in the session, and once more outside of it.

The text of this module is also the first cell of a session, so that both do the same.
"""

from __future__ import annotations

import hashlib
from random import Random

PART = 8
"""Each generation writes one of so many parts anew, somewhere."""


class Memory:
    """So many bytes, a pure function of name, size and generation."""

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.generation = 0
        self.bytes = bytearray(Random(name).randbytes(size))

    def advance(self, to: int) -> None:
        """Become the generation `to`, from the one before. Nothing happens when it is that."""
        if self.generation == to - 1:
            random = Random(f"{self.name}/{to}")
            length = len(self.bytes) // PART
            at = random.randrange(len(self.bytes) - length)
            self.bytes[at : at + length] = random.randbytes(length)
            self.generation = to

    def said(self) -> str:
        """Generation and digest of all bytes."""
        return f"{self.generation} {hashlib.sha256(self.bytes).hexdigest()}"
