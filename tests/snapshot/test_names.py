"""Keys of objects."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from snapshot.model import SnapshotKey
from snapshot.names import escape, manifest_key, owner_of, pack_key, parse_manifest_key, unescape
from snapshot.stores.base import check_key

names = st.text(min_size=1, max_size=40).filter(
    lambda text: not any(0xD800 <= ord(letter) < 0xE000 for letter in text)
)


@given(names)
def test_names_come_back_and_keep_the_rules_of_stores(name: str) -> None:
    assert unescape(escape(name)) == name
    assert check_key(escape(name)) == escape(name)
    assert "/" not in escape(name)


@given(names, names)
def test_two_names_never_meet(one: str, other: str) -> None:
    assume(one != other)
    assert escape(one) != escape(other)


@pytest.mark.parametrize(
    ("name", "escaped"),
    [
        ("ada", "ada"),
        ("ada.b-c_d", "ada.b-c_d"),
        ("session:h/ada/", "session=3Ah=2Fada=2F"),
        (".hidden", "=2Ehidden"),
        ("..", "=2E."),
        ("~ada", "=7Eada"),
        ("Zoë", "Zo=C3=AB"),
        ("字" * 50, "~" + "5a2X" * 50),
    ],
)
def test_known_names(name: str, escaped: str) -> None:
    assert escape(name) == escaped


@pytest.mark.parametrize("name", ["", "字" * 70, "x" * 200])
def test_names_without_a_place_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="names have"):
        escape(name)


@given(names, names, st.integers(0, 10**9), st.integers(0, 10**9))
def test_manifest_keys_come_back_and_sort_by_age(
    owner: str, session: str, epoch: int, sequence: int
) -> None:
    key = SnapshotKey(owner, session, epoch, sequence)
    assert parse_manifest_key(manifest_key(key)) == key
    assert owner_of(manifest_key(key)) == owner_of(pack_key(owner, "id")) == owner
    assert manifest_key(key) < manifest_key(SnapshotKey(owner, session, epoch, sequence + 1))
    assert manifest_key(key) < manifest_key(SnapshotKey(owner, session, epoch + 1, 0))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "manifests/ada/s/1-1",
        "manifests/ada/0000000001-0000000001",
        "packs/ada/s/0000000001-0000000001",
        "manifests/a=2a/s/0000000001-0000000001",
        "manifests/a=zz/s/0000000001-0000000001",
        "manifests/a=C3/s/0000000001-0000000001",
        "manifests/~YWRh/s/0000000001-0000000001",
        "manifests/ada/s/0000000001-0000000001/x",
    ],
)
def test_other_keys_are_no_manifests(text: str) -> None:
    with pytest.raises(ValueError, match="not the key of a manifest"):
        parse_manifest_key(text)
