"""How a freeze or a thaw can end without doing it.

SnapshotError
├── CannotFreezeError     something in the tree cannot be saved; nothing was touched
├── FreezeFailedError     tried and undone: the tree goes on as it was
├── CannotThawError       this machine cannot bring the snapshot back now; it is untouched
├── SnapshotRefusedError  the snapshot is damaged or not authentic: CRIU never saw it
└── FillingLostError      a thawed tree lacks memory that nobody can bring any more: end it
"""

from __future__ import annotations

from snapshot.errors import SnapshotError
from snapshot.model import Blocker


class CannotFreezeError(SnapshotError):
    """Nothing was touched. `blockers` says what in the tree is in the way."""

    def __init__(self, blockers: tuple[Blocker, ...]) -> None:
        first = blockers[0]
        more = f" (and {len(blockers) - 1} more)" if len(blockers) > 1 else ""
        who = f"{first.command}: " if first.command else ""
        super().__init__(f"{who}{first.what}{more}.", remedy=first.remedy)
        self.blockers = blockers


class FreezeFailedError(SnapshotError):
    """The tree goes on as it was; its network was ended and must be connected again."""


class CannotThawError(SnapshotError):
    """Nothing of the tree is left running and the snapshot is as it was; trying again is safe."""


class SnapshotRefusedError(SnapshotError):
    """The snapshot does not authenticate. It is kept for inspection and never given to CRIU."""


class FillingLostError(SnapshotError):
    """A tree lacks memory that nobody can bring any more. It must be ended; its snapshot is whole."""
