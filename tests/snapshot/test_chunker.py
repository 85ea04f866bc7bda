"""Cutting pages into chunks."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapshot.chunker import BATCH, BLOCK, PAGE, Batch, Batcher, Piece, cut
from tests.snapshot.layouts import Layout, filled, layouts


def batches(layout: Layout) -> list[Batch]:
    batcher = Batcher()
    found = [batch for vaddr, data in layout for batch in batcher.add(vaddr, memoryview(data))]
    last = batcher.finish()
    return [*found, last] if last else found


def pages_of(layout: Layout) -> dict[int, bytes]:
    return {
        vaddr + start: data[start : start + PAGE]
        for vaddr, data in layout
        for start in range(0, len(data), PAGE)
    }


def pages_cut(layout: Layout) -> dict[int, bytes]:
    """Every page put together again from what `cut` said."""
    pages: dict[int, bytes] = {}
    for batch in batches(layout):
        blocks, zeros = cut(batch)
        for zero in zeros:
            for index in range(zero.pages):
                pages[zero.vaddr + index * PAGE] = bytes(PAGE)
        for block in blocks:
            content, position = bytes(block.bytes_of(batch.data)), 0
            for piece in block.pieces:
                for index in range(piece.pages):
                    pages[piece.vaddr + index * PAGE] = content[position : position + PAGE]
                    position += PAGE
            assert position == len(content)
    return pages


@given(layouts())
def test_every_page_comes_back_and_no_other(layout: Layout) -> None:
    assert pages_cut(layout) == pages_of(layout)


@given(layouts())
def test_chunks_stay_within_a_block_and_hold_no_zero_page(layout: Layout) -> None:
    seen = set()
    for batch in batches(layout):
        for block in cut(batch)[0]:
            numbers = {piece.vaddr // BLOCK for piece in block.pieces}
            numbers |= {(piece.vaddr + piece.pages * PAGE - 1) // BLOCK for piece in block.pieces}
            assert len(numbers) == 1
            assert not numbers & seen, "a block was cut into two chunks"
            seen |= numbers
            content = bytes(block.bytes_of(batch.data))
            assert all(any(content[p : p + PAGE]) for p in range(0, len(content), PAGE))


def test_cuts_do_not_depend_on_how_pages_arrive() -> None:
    whole = filled(3 * BATCH + 5 * PAGE, seed=3)
    start = 7 * PAGE
    at_once = contents([(start, whole)])
    for step in (PAGE, 3 * PAGE, BLOCK, 256 * PAGE):
        parts = [(start + at, whole[at : at + step]) for at in range(0, len(whole), step)]
        assert contents(parts) == at_once


def test_an_inserted_region_leaves_the_other_chunks_alone() -> None:
    region = (0x7F0000000000, filled(40 * PAGE, seed=1))
    before = contents([region])
    after = contents([(0x1000, filled(3 * PAGE, seed=2)), region])
    assert set(before) < set(after)


def contents(layout: Layout) -> list[bytes]:
    return [
        bytes(block.bytes_of(batch.data)) for batch in batches(layout) for block in cut(batch)[0]
    ]


def test_batches_have_a_bound() -> None:
    layout = [(BLOCK // 2, filled(4 * BATCH, seed=5))]
    sizes = [len(batch.data) for batch in batches(layout)]
    assert max(sizes) <= BATCH + BLOCK
    assert min(sizes[:-1]) >= BATCH


def test_what_was_added_may_be_overwritten_at_once() -> None:
    arena = bytearray(filled(PAGE, seed=1))
    batcher = Batcher()
    list(batcher.add(0, memoryview(arena)))
    arena[:] = bytes(PAGE)
    batch = batcher.finish()
    assert batch is not None
    assert bytes(batch.data) == filled(PAGE, seed=1)


@pytest.mark.parametrize(
    ("vaddr", "size", "reason"),
    [
        (1, PAGE, "whole pages"),
        (PAGE, 100, "whole pages"),
        (PAGE, 0, "whole pages"),
        (0, PAGE, "not in order"),
        (3 * PAGE, PAGE, "not in order"),
    ],
)
def test_bad_pages_are_refused(vaddr: int, size: int, reason: str) -> None:
    batcher = Batcher()
    list(batcher.add(2 * PAGE, memoryview(bytes(2 * PAGE))))
    with pytest.raises(ValueError, match=reason):
        list(batcher.add(vaddr, memoryview(bytes(size))))


@settings(max_examples=50)
@given(st.lists(st.booleans(), min_size=1, max_size=40), st.integers(0, 20))
def test_zero_runs_are_as_long_as_they_can_be(flags: list[bool], first: int) -> None:
    data = b"".join(b"x" * PAGE if flag else bytes(PAGE) for flag in flags)
    batch = Batch((Piece(first * PAGE, len(flags), 0),), memoryview(data))
    zeros = cut(batch)[1]
    runs = "".join("x" if flag else "0" for flag in flags).split("x")
    assert [zero.pages for zero in zeros] == [len(run) for run in runs if run]
