"""Errors of the snapshot engine.

SnapshotError
├── StoreError
│   ├── StoreUnavailableError   nobody answered, or not now: trying again may help
│   ├── StoreDeniedError        the store refused us: credentials, rights or bucket are wrong
│   ├── MissingError            there is no such object
│   └── AlreadyExistsError      the key is taken by something else
├── TamperedError               a manifest, pack or key is damaged, cut short or not what it says it is
├── NewerFormatError            written by a newer version of this program; left untouched
└── KeyUnavailableError         the key that would open it is not here (lost, erased, unreadable)
"""

from __future__ import annotations


class SnapshotError(Exception):
    """Base. `message` says what is wrong in plain words, `remedy` what the reader can do."""

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message if not remedy else f"{message} {remedy}")
        self.message = message
        self.remedy = remedy


class StoreError(SnapshotError):
    """The object store did not do what it was asked."""


class StoreUnavailableError(StoreError):
    """Nobody answered, or the answer was "not now". Nothing is known about the last request: a
    write may or may not have happened."""


class StoreDeniedError(StoreError):
    """The store answered and refuses: trying the same again will not help."""


class MissingError(StoreError):
    """There is no such object."""


class AlreadyExistsError(StoreError):
    """The key was to be created and exists."""


class TamperedError(SnapshotError):
    """What was read does not authenticate as what it should be. It must not be used."""


class NewerFormatError(SnapshotError):
    """The format is newer than this program. Nothing was changed."""


class KeyUnavailableError(SnapshotError):
    """The key needed is not available. Without it the data cannot be read by anybody."""
