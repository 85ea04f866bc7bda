"""What a session's memory may be, and what is a loss."""

from __future__ import annotations

from tests.chaos.account import Account
from tests.chaos.content import Memory

SIZE = 4000


def at(generation: int) -> str:
    """What a session of that generation says."""
    memory = Memory("alice", SIZE)
    for to in range(1, generation + 1):
        memory.advance(to)
    return memory.said()


def after(generations: int, *, committed: int | None = None) -> Account:
    """An account whose session has acknowledged so many generations."""
    account = Account(Memory("alice", SIZE))
    for generation in range(generations):
        if generation == committed:
            account.commit()
        account.ask_next()
        assert account.judge(at(generation + 1)) == ""
    return account


def test_generations_differ_and_depend_on_nothing_else() -> None:
    assert len({at(n).split()[1] for n in range(4)}) == 4
    assert at(3) == at(3)


def test_a_generation_is_not_skipped() -> None:
    memory = Memory("alice", SIZE)
    memory.advance(2)
    assert memory.said() == at(0)


def test_what_was_acknowledged_must_be_there() -> None:
    account = after(2)
    assert "generation 1" in account.judge(at(1))
    assert account.judge(at(2)) == ""


def test_what_was_asked_for_may_have_happened_or_not() -> None:
    for happened in (0, 1):
        account = after(2)
        account.ask_next()
        assert account.judge(at(2 + happened)) == ""
        assert account.known == account.asked == 2 + happened


def test_one_other_byte_is_a_loss() -> None:
    memory = Memory("alice", SIZE)
    memory.bytes[SIZE // 2] ^= 1
    assert "bytes" in after(0).judge(memory.said())


def test_back_to_the_snapshot_only_where_a_session_may_have_ended_while_it_filled() -> None:
    account = after(3, committed=1)
    assert "generation 1" in account.judge(at(1))
    account.may_go_back = True
    assert "generation 2" in account.judge(at(2))
    assert account.judge(at(1)) == ""
    assert account.ask_next() == 2
    assert account.judge(at(2)) == ""


def test_a_new_snapshot_is_where_it_goes_back_to() -> None:
    account = after(3, committed=1)
    account.may_go_back = True
    account.commit()
    assert not account.may_go_back
    assert "generation 1" in account.judge(at(1))
