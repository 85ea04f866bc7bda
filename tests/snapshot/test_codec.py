"""The layout of manifests."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshot.codec import (
    CHUNK,
    EXTENT,
    MANIFEST_MAGIC,
    VERSION,
    ZERO,
    Body,
    FileEntry,
    PackEntry,
    Space,
    decode_body,
    encode_body,
    front,
    take_apart,
)
from snapshot.errors import NewerFormatError, TamperedError

PAGE = 4096
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)


def body(**changes: Any) -> Body:
    """One pack with two chunks; one file of the first, one task with the second and a zero page."""
    fields: dict[str, Any] = {
        "facts": {"kernel": "6.18"},
        "extra": {"constraints": {"cpu": "x"}},
        "packs": (PackEntry("p1", 10_000, b"wrapped"),),
        "files": {"core.img": FileEntry(100, (0,))},
        "chunks": np.array(
            [(b"a" * 20, 0, 8, 116, 100, 0), (b"b" * 19 + b"\0", 0, 124, 9000, 2 * PAGE, 1)], CHUNK
        ),
        "spaces": (
            Space("task", 7, np.array([(0, 1, ZERO, 0), (2 * PAGE, 2, 1, 0)], EXTENT)),
            Space("shmem", 7, np.array([], EXTENT)),
        ),
    }
    return Body(**(fields | changes))


def same(one: Body, other: Body) -> bool:
    return encode_body(one) == encode_body(other)


def test_a_body_comes_back() -> None:
    decoded = decode_body(encode_body(body()))
    assert same(decoded, body())
    assert decoded.facts == {"kernel": "6.18"}
    assert decoded.files == {"core.img": FileEntry(100, (0,))}
    assert decoded.chunks["name"][1].tobytes() == b"b" * 19 + b"\0"
    assert decoded.spaces[0].extents["chunk"].tolist() == [ZERO, 1]


def test_an_empty_body_comes_back() -> None:
    empty = body(packs=(), files={}, chunks=np.array([], CHUNK), spaces=())
    assert same(decode_body(encode_body(empty)), empty)


@given(st.dictionaries(st.text(max_size=5), json_values), st.text(max_size=20))
def test_any_facts_and_names_come_back(facts: dict[str, Any], name: str) -> None:
    written = body(facts=facts, files={name: FileEntry(100, (0,))})
    decoded = decode_body(encode_body(written))
    assert decoded.facts == facts
    assert set(decoded.files) == {name}


def test_every_truncation_is_noticed() -> None:
    data = encode_body(body())
    for length in range(len(data)):
        with pytest.raises(TamperedError):
            decode_body(data[:length])
    with pytest.raises(TamperedError, match="left over"):
        decode_body(data + b"\0")


def extents(*rows: tuple[int, int, int, int]) -> tuple[Space, ...]:
    return (Space("task", 1, np.array(list(rows), EXTENT)),)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"packs": ()}, "in no pack"),
        ({"naming": 3}, "unknown way"),
        ({"packs": (PackEntry("p1", 9123, b""),)}, "behind the end of its pack"),
        ({"files": {"f": FileEntry(99, (0,))}}, "another length"),
        ({"files": {"f": FileEntry(99, (5,))}}, "out of bounds"),
        ({"spaces": extents((0, 1, 2, 0))}, "no chunk"),
        ({"spaces": extents((0, 3, 1, 0))}, "behind the end of its chunk"),
        ({"spaces": extents((0, 1, 1, 2))}, "behind the end of its chunk"),
        ({"spaces": extents((0, 2, 1, 0), (PAGE, 1, 1, 0))}, "overlap"),
        ({"spaces": extents((PAGE, 1, 1, 0), (0, 1, 1, 0))}, "not in order"),
    ],
)
def test_references_that_lead_nowhere_are_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(TamperedError, match=reason):
        decode_body(encode_body(body(**changes)))


@given(st.binary(max_size=400))
def test_noise_is_no_body(data: bytes) -> None:
    with pytest.raises(TamperedError):
        decode_body(data)


@given(st.binary(max_size=80))
def test_noise_is_no_manifest(data: bytes) -> None:
    for noise in (data, MANIFEST_MAGIC + struct.pack("<H", VERSION) + data):
        with pytest.raises(TamperedError):
            take_apart(noise)


def test_a_front_comes_apart() -> None:
    head = front({"owner": "ada"}, 5)
    envelope = take_apart(head + b"12345" + b"body")
    assert envelope.header == {"owner": "ada"}
    assert (envelope.bound, envelope.summary, bytes(envelope.body)) == (head, b"12345", b"body")
    assert bytes(take_apart(head + b"12345").body) == b""


def test_a_newer_format_is_said_to_be_newer() -> None:
    head = bytearray(front({"owner": "ada"}, 0))
    head[8:10] = struct.pack("<H", VERSION + 1)
    with pytest.raises(NewerFormatError, match=f"format {VERSION + 1}.*up to {VERSION}"):
        take_apart(bytes(head))
