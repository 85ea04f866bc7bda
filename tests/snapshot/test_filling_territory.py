"""Where pages belong while a tree moves its memory: against a model that is one dictionary."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapshot.filling.territory import BLOCK, Layout, Space, Territory, layout
from snapshot.images import PAGE

FLOOR, TOP = 4, 90
"""Pages between which everything happens in these tests."""


@dataclass
class Model:
    """Address (in pages) to the number of the page that is yet to come there."""

    at: dict[int, int] = field(default_factory=dict)

    def drop(self, start: int, end: int) -> None:
        self.at = {a: page for a, page in self.at.items() if not start <= a < end}

    def move(self, start: int, target: int, length: int) -> None:
        moved = {a: page for a, page in self.at.items() if start <= a < start + length}
        self.drop(start, start + length)
        self.drop(target, target + length)
        self.at |= {a - start + target: page for a, page in moved.items()}

    def done(self, first: int, pages: int) -> None:
        self.at = {a: page for a, page in self.at.items() if not first <= page < first + pages}


runs = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 12)), min_size=1, max_size=5)


def space_of(gaps: list[tuple[int, int]]) -> Space:
    """One space of runs, each that many pages behind the last."""
    found, address = [], FLOOR
    for gap, pages in gaps:
        address += gap
        found.append((address * PAGE, pages))
        address += pages
    return layout([("task", 7, found)]).spaces[0]


def model_of(space: Space) -> Model:
    pages = {}
    for segment in space.segments:
        for address in range(segment.start, segment.end, PAGE):
            pages[address // PAGE] = segment.page_at(address)
    return Model(pages)


spans = st.tuples(st.integers(0, TOP), st.integers(1, 30))
changes = st.one_of(
    st.tuples(st.just("drop"), spans),
    st.tuples(st.just("cut"), spans),
    st.tuples(st.just("done"), spans),
    st.tuples(st.just("move"), st.tuples(*[st.integers(0, TOP)] * 2, st.integers(1, 30))),
    st.tuples(st.just("fork"), st.just(())),
)


def change(territory: Territory, model: Model, what: str, where: tuple[int, ...]) -> None:
    """The same change to both."""
    if what in ("drop", "cut"):
        start, end = where[0], where[0] + where[1]
        getattr(territory, what)(start * PAGE, end * PAGE)
        model.drop(start, end)
    elif what == "done":
        first = min(where[0], territory.space.pages - 1)
        pages = min(where[1], territory.space.pages - first)
        territory.done(first, pages)
        model.done(first, pages)
    elif what == "move":
        territory.move(*(number * PAGE for number in where))
        model.move(*where)


def agree(territory: Territory, model: Model) -> None:
    """Every question has the same answer."""
    space = territory.space
    assert territory.remaining == len(model.at)
    for address in range(TOP + 40):
        assert territory.page_at(address * PAGE) == model.at.get(address)
        hole = next((n for n in range(9) if address + n in model.at), 9)
        assert territory.hole_at(address * PAGE, 9) == hole
    for first in range(0, space.pages, 5):
        told = {}
        for place in territory.places(first, 7):
            assert first <= place.first
            assert place.first + place.pages <= first + 7
            told |= {place.address // PAGE + n: place.first + n for n in range(place.pages)}
        assert told == {a: p for a, p in model.at.items() if first <= p < first + 7}


@settings(max_examples=150, deadline=None)
@given(runs, st.lists(changes, max_size=12))
def test_a_territory_answers_as_a_dictionary_would(
    gaps: list[tuple[int, int]], story: list[tuple[str, tuple[int, ...]]]
) -> None:
    space = space_of(gaps)
    family = [(Territory(space), model_of(space))]
    for what, where in story:
        if what == "fork" and len(family) < 4:
            parent, model = family[-1]
            family.append((parent.fork(), copy.deepcopy(model)))
        else:
            # the newest changes; that the others do not is looked at below
            change(*family[-1], what, where)
    for territory, model in family:
        agree(territory, model)


def test_memory_moved_over_a_part_of_itself_is_where_it_was_moved_to() -> None:
    space = space_of([(0, 8)])
    territory = Territory(space)
    territory.move(FLOOR * PAGE, (FLOOR + 3) * PAGE, 8 * PAGE)
    assert [territory.page_at((FLOOR + n) * PAGE) for n in range(12)] == [
        *[None] * 3, 0, 1, 2, 3, 4, 5, 6, 7, None,
    ]  # fmt: skip
    assert territory.remaining == 8


def test_an_ended_address_space_wants_nothing() -> None:
    territory = Territory(space_of([(0, 8), (3, 5)]))
    child = territory.fork()
    territory.end()
    assert territory.remaining == 0
    assert territory.places(0, 13) == []
    assert territory.page_at(FLOOR * PAGE) is None
    assert child.remaining == 13


tasks = st.lists(runs, min_size=1, max_size=5)


def layout_of(tasks: list[list[tuple[int, int]]]) -> Layout:
    lazy = []
    for number, gaps in enumerate(tasks):
        found, address = [], FLOOR
        for gap, pages in gaps:
            address += gap
            found.append((address * PAGE, pages))
            address += pages
        lazy.append(("task", number, found))
    return layout(lazy)


@given(tasks)
def test_every_page_has_one_number_and_is_found_by_it(tasks: list[list[tuple[int, int]]]) -> None:
    made = layout_of(tasks)
    seen = set()
    for space in made.spaces:
        assert space.base % BLOCK == 0
        for segment in space.segments:
            for address in range(segment.start, segment.end, PAGE):
                page = segment.page_at(address)
                assert made.locate(page) == (space, address)
                seen.add(page)
    assert len(seen) == made.lazy_pages
    assert max(seen) + 1 == made.pages
    for page in set(range(made.pages + 3)) - seen:
        with pytest.raises(IndexError):
            made.locate(page)


def test_a_task_without_lazy_memory_takes_no_number() -> None:
    made = layout([("task", 1, []), ("task", 2, [(PAGE, 3)]), ("task", 3, [])])
    assert [space.id for space in made.spaces] == [2]
    assert made.lazy_pages == 3
    assert layout([]).pages == 0


def test_the_runs_of_a_space_lead_to_its_page_numbers() -> None:
    made = layout([("task", 1, [(8 * PAGE, 3)]), ("task", 2, [(PAGE, 2), (9 * PAGE, 4)])])
    second = made.spaces[1]
    base = BLOCK * PAGE
    assert made.runs(second) == [(PAGE, 2, base), (9 * PAGE, 4, base + 2 * PAGE)]
