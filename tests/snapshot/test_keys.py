"""Who can read what."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from snapshot.errors import KeyUnavailableError, TamperedError
from snapshot.keyfiles import LocalWrapping
from snapshot.keys import Keys
from tests.fakes.stores import StoreInMemory


def keys(store: StoreInMemory, folder: Path) -> Keys:
    return Keys(store, LocalWrapping(folder / "keys"))


def test_a_users_key_is_made_once_and_found_again(tmp_path: Path) -> None:
    store = StoreInMemory()
    first = keys(store, tmp_path).current("ada")
    again = keys(store, tmp_path).current("ada")
    assert again.id == first.id
    assert again.name(b"content") == first.name(b"content")
    assert len(store.objects) == 1


def test_users_share_no_names_and_no_keys(tmp_path: Path) -> None:
    all_keys = keys(StoreInMemory(), tmp_path)
    ada, bob = all_keys.current("ada"), all_keys.current("bob")
    assert ada.name(b"content") != bob.name(b"content")
    with pytest.raises(TamperedError):
        bob.unwrap(ada.wrap(b"secret", "pack 1"), "pack 1")


def test_a_data_key_opens_only_for_its_purpose(tmp_path: Path) -> None:
    ada = keys(StoreInMemory(), tmp_path).current("ada")
    wrapped = ada.wrap(b"secret", "pack 1")
    assert ada.unwrap(wrapped, "pack 1") == b"secret"
    with pytest.raises(TamperedError):
        ada.unwrap(wrapped, "pack 2")


def test_the_first_key_of_a_user_made_by_many_at_once(tmp_path: Path) -> None:
    store = StoreInMemory()
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: keys(store, tmp_path).current("ada"), range(16)))
    fresh = keys(store, tmp_path)
    assert len({fresh.current("ada").id for _ in range(3)}) == 1
    for each in made:  # whichever was used stays readable
        assert fresh.get("ada", each.id).name(b"x") == each.name(b"x")
    assert len(list((tmp_path / "keys").iterdir())) == 1


def test_the_key_file_is_for_its_owner_only(tmp_path: Path) -> None:
    keys(StoreInMemory(), tmp_path).current("ada")
    path = tmp_path / "keys" / "kek.key"
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)
    with pytest.raises(KeyUnavailableError, match="chmod 600"):
        keys(StoreInMemory(), tmp_path).current("ada")


def test_no_key_lies_in_the_store_in_the_open(tmp_path: Path) -> None:
    store = StoreInMemory()
    ada = keys(store, tmp_path).current("ada")
    everything = b"".join(store.objects.values())
    for secret in (ada._wrapping, ada._naming):
        assert secret not in everything
        assert secret.hex().encode() not in everything
    assert ada._wrapping.hex() not in repr(ada)


def test_erasing_a_user_takes_every_key(tmp_path: Path) -> None:
    store = StoreInMemory()
    all_keys = keys(store, tmp_path)
    ada, bob = all_keys.current("ada"), all_keys.current("bob")
    assert all_keys.erase("ada") == 1
    for fresh in (all_keys, keys(store, tmp_path)):
        with pytest.raises(KeyUnavailableError, match=r"ada.*erased or lost"):
            fresh.get("ada", ada.id)
        assert fresh.get("bob", bob.id).name(b"x") == bob.name(b"x")
    assert all_keys.current("ada").id != ada.id


def test_without_the_key_encryption_key_nothing_opens(tmp_path: Path) -> None:
    store = StoreInMemory()
    ada = keys(store, tmp_path).current("ada")
    (tmp_path / "keys" / "kek.key").unlink()
    with pytest.raises(KeyUnavailableError, match="backup"):
        keys(store, tmp_path).get("ada", ada.id)


@pytest.mark.parametrize("content", [b"", b"short", b"!" * 44, bytes(range(200, 244))])
def test_a_damaged_key_file_is_named_and_left(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "keys" / "kek.key"
    path.parent.mkdir()
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(KeyUnavailableError, match=str(path)):
        keys(StoreInMemory(), tmp_path).current("ada")
    assert path.read_bytes() == content


def test_a_record_of_another_user_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    store = StoreInMemory()
    all_keys = keys(store, tmp_path)
    ada, bob = all_keys.current("ada"), all_keys.current("bob")
    record = store.objects[f"keys/bob/{bob.id}"]
    damaged = json.loads(record)
    damaged["wrapped"] = "00" + damaged["wrapped"][2:]
    for content in (record, json.dumps(damaged).encode(), b"{}", b"[1]", b"\xff", record[:-9]):
        store.objects[f"keys/ada/{ada.id}"] = content
        with pytest.raises(TamperedError):
            keys(store, tmp_path).get("ada", ada.id)
