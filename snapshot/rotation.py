"""A new key-encryption key, without storing any pack again.

Only the records of the users' keys are written anew (one small object each): what they open stays as
it is, so suspends and resumes go on meanwhile. The order makes it safe to die anywhere: the old key
is put aside before the new one is current, and is forgotten only when no record needs it any more. A
rotation that was broken off is finished by the next one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from snapshot.errors import KeyUnavailableError, TamperedError
from snapshot.keyfiles import LocalWrapping
from snapshot.keys import Keys

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Rotated:
    """What a rotation did. `problems` names the records that nobody can open and why; the keys
    that they name are kept."""

    key: str
    rewrapped: int
    problems: tuple[str, ...] = ()


def rotate(keys: Keys, wrapping: LocalWrapping) -> Rotated:
    """Replace the key-encryption key. Raises `KeyUnavailableError` while another process does so;
    `StoreUnavailableError` leaves both keys in place, and everything readable."""
    with wrapping.only_rotation():
        wrapping.begin_rotation()
        problems: list[str] = []
        rewrapped = 0
        for owner, key_id in _records(keys):
            try:
                keys.rewrap(owner, key_id)
                rewrapped += 1
            except (KeyUnavailableError, TamperedError) as error:
                if key_id in keys.ids(owner):  # it was not erased meanwhile
                    problems.append(f"{owner}: {error.message}")
        wrapping.forget_others(_needed(keys))
        return Rotated(wrapping.current_id(), rewrapped, tuple(problems))


def _records(keys: Keys) -> Iterator[tuple[str, str]]:
    for owner in keys.owners():
        for key_id in keys.ids(owner):
            yield owner, key_id


def _needed(keys: Keys) -> set[str]:
    """Which key-encryption keys the records name, after all were looked at again."""
    needed = set()
    for owner, key_id in _records(keys):
        try:
            needed.add(keys.wrapped_by(owner, key_id))
        except (KeyUnavailableError, TamperedError) as error:
            log.warning("%s", error)
    return needed
