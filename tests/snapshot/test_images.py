"""CRIU's image files: what we write is read back, what we do not know is kept."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshot import images
from snapshot.images import Change, Pagemap, PagemapEntry

FILES_MAGIC = 0x56303138
VARINT, FIXED64, BYTES = 0, 1, 2

entries = st.builds(
    PagemapEntry,
    vaddr=st.integers(0, 2**47).map(lambda page: page & ~0xFFF),
    pages=st.integers(1, 2**33),
    flags=st.sampled_from([4, 6]),
)


def regular(id: int, name: str, size: int | None) -> bytes:
    fields: list[images.Field] = [(1, VARINT, id), (2, VARINT, 0o100002), (3, VARINT, 7)]
    fields += [(5, BYTES, b"\x08\x01"), (6, BYTES, name.encode()), (7, VARINT, 12)]
    if size is not None:
        fields.append((8, VARINT, size))
    fields += [(11, VARINT, 1), (11, VARINT, 2), (99, FIXED64, b"12345678")]
    return images.encode([(1, VARINT, 1), (2, VARINT, id), (3, BYTES, images.encode(fields))])


SOCKET = images.encode([(1, VARINT, 4), (2, VARINT, 9), (5, BYTES, b"\x08\x07")])
FILES = images.join(FILES_MAGIC, [regular(1, "/a", 10), SOCKET, regular(2, "/b", None)])


@given(st.integers(1, 2**31), st.lists(entries, max_size=20))
def test_a_pagemap_is_read_as_it_was_written(pages_id: int, runs: list[PagemapEntry]) -> None:
    pagemap = Pagemap(pages_id, tuple(runs))
    assert images.read_pagemap(images.write_pagemap(pagemap)) == pagemap


def test_pages_that_are_not_present_take_no_room_in_the_file() -> None:
    runs = (PagemapEntry(0x1000, 2, 4), PagemapEntry(0x9000, 5, 1), PagemapEntry(0x20000, 1, 6))
    pagemap = Pagemap(1, runs)
    assert pagemap.runs() == [(0x1000, 2, 0), (0x20000, 1, 2 * 4096)]
    assert pagemap.file_bytes() == 3 * 4096


@pytest.mark.parametrize("name", [("task", 7), ("shmem", 123)])
def test_pagemap_names_go_both_ways(name: tuple[str, int]) -> None:
    assert images.parse_pagemap_name(images.pagemap_name(*name)) == name


def test_regular_files_are_found_among_others() -> None:
    found = images.regular_files(FILES)
    assert [(file.id, file.name, file.size) for file in found] == [(1, "/a", 10), (2, "/b", -1)]


def test_without_changes_every_byte_stays() -> None:
    assert images.change_regular_files(FILES, {}) == FILES
    assert images.change_regular_files(FILES, {7: Change(unchecked=True, name="/x")}) == FILES


def test_a_change_touches_its_file_and_nothing_else() -> None:
    changed = images.change_regular_files(FILES, {1: Change(unchecked=True, name="/new")})
    magic, records = images.split(changed)
    assert magic == FILES_MAGIC
    assert records[1:] == images.split(FILES)[1][1:]
    inner = next(value for number, _, value in images.decode(records[0]) if number == 3)
    assert isinstance(inner, bytes)
    fields = list(images.decode(inner))
    assert (6, BYTES, b"/new") in fields and (99, FIXED64, b"12345678") in fields
    assert not {8, 11} & {number for number, _, _ in fields}


def test_a_new_name_alone_keeps_the_checks() -> None:
    changed = images.change_regular_files(FILES, {1: Change(name="/new")})
    assert images.regular_files(changed)[0] == images.RegularFile(1, "/new", 10)


@pytest.mark.parametrize(
    "data", [b"", b"short", struct.pack("<II", 1, 2), FILES[:-1], FILES + b"\x05\0\0\0"]
)
def test_what_is_no_image_is_refused(data: bytes) -> None:
    with pytest.raises(images.ImageError):
        images.split(data)


@given(st.binary(max_size=60))
def test_any_bytes_are_parsed_or_refused(data: bytes) -> None:
    try:
        fields = list(images.decode(data))
    except images.ImageError:
        return
    assert list(images.decode(images.encode(fields))) == fields


def test_neighbouring_runs_of_one_kind_become_one() -> None:
    runs = [(0x1000, 2, 6), (0x3000, 1, 6), (0x4000, 1, 4), (0x6000, 1, 4), (0x7000, 3, 4)]
    entries = [images.PagemapEntry(*run) for run in runs]
    merged = [(0x1000, 3, 6), (0x4000, 1, 4), (0x6000, 4, 4)]
    assert images.merged(entries) == tuple(images.PagemapEntry(*run) for run in merged)
    assert images.merged([]) == ()
