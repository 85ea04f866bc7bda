"""What a session's memory may be, by what is known outside of it (pure but for the hashing)."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.chaos.content import Memory


@dataclass(slots=True)
class Account:
    """`known` is the generation that was last acknowledged, `asked` the last one asked for, and
    `committed` that of the last committed snapshot. `may_go_back` when a session may have been ended
    while it was filling, and begun again from its snapshot."""

    memory: Memory
    known: int = 0
    asked: int = 0
    committed: int | None = None
    may_go_back: bool = False
    _said: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._said[0] = self.memory.said()

    def ask_next(self) -> int:
        """The generation to ask for now."""
        self.asked = self.known + 1
        if self.asked not in self._said:
            self.memory.advance(self.asked)
            self._said[self.asked] = self.memory.said()
        return self.asked

    def commit(self) -> None:
        """What is known is now in a committed snapshot, and is where a session may go back to."""
        self.committed, self.may_go_back = self.known, False

    def judge(self, said: str) -> str:
        """What is wrong with the session's answer; nothing if it is what it may be, which then is
        what is known."""
        generation = int(said.split()[0])
        allowed = {self.known, self.asked}
        if self.may_go_back and self.committed is not None:
            allowed.add(self.committed)
        if generation not in allowed:
            return f"it is at generation {generation}, and may be at {sorted(allowed)}"
        if said != self._said[generation]:
            return f"its bytes are not those of generation {generation}"
        self.known = self.asked = generation
        return ""
