"""What an operator is told when something cannot go on.

LocalError
├── UpRefused    `hubernate up` does not start: the reason and the remedy are named
└── NotReady     a program did not answer within its deadline
"""

from __future__ import annotations


class LocalError(Exception):
    """Base. `message` says what is wrong in plain words, `remedy` what to do about it."""

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(f"{message} {remedy}".strip())
        self.message = message
        self.remedy = remedy


class UpRefused(LocalError):
    """Nothing was started."""


class NotReady(LocalError):
    """A program was started and did not become ready; its log says more."""
