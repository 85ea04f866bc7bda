"""What set-up says when it cannot go on."""

from __future__ import annotations


class SetupFailed(Exception):
    """One step failed: what, why, and what to do. Nothing half-made is taken for whole."""

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
