"""The contract of stores, on every one of them; S3 on the real server."""

from __future__ import annotations

import hashlib
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import boto3
import pytest

from snapshot.errors import (
    AlreadyExistsError,
    MissingError,
    StoreDeniedError,
    StoreError,
    StoreUnavailableError,
)
from snapshot.stores.base import Store
from snapshot.stores.directory import DirectoryStore
from snapshot.stores.retry import RetryingStore
from snapshot.stores.s3 import S3Store
from tests.builders.s3 import S3Server, running_s3_server, s3_server
from tests.fakes.stores import StoreInMemory

__all__ = ["s3_server"]


@pytest.fixture(params=["directory", "s3", "retrying s3", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "memory":
        return StoreInMemory()
    if request.param == "directory":
        return DirectoryStore(tmp_path / "store")
    server: S3Server = request.getfixturevalue("s3_server")
    return RetryingStore(server.new_store()) if "retrying" in request.param else server.new_store()


def test_what_was_put_is_got(store: Store) -> None:
    for data in (b"", b"x", bytes(range(256)) * 5000, bytearray(b"array"), memoryview(b"view")):
        store.put("a/b.c_d-e=2F~", data)
        assert store.get("a/b.c_d-e=2F~") == data
        assert store.head("a/b.c_d-e=2F~") == len(data)


def test_a_later_put_replaces(store: Store) -> None:
    store.put("key", b"first, and longer")
    store.put("key", b"second")
    assert store.get("key") == b"second"


def test_put_if_absent_leaves_what_is_there(store: Store) -> None:
    store.put("key", b"mine", if_absent=True)
    with pytest.raises(AlreadyExistsError, match="key"):
        store.put("key", b"yours", if_absent=True)
    assert store.get("key") == b"mine"
    store.delete("key")
    store.put("key", b"again", if_absent=True)
    assert store.get("key") == b"again"


def test_only_one_of_many_creates_where_the_store_excludes(store: Store) -> None:
    if not store.excludes:
        pytest.skip("this server accepts the condition and does not honour it")

    def create(number: int) -> bool:
        try:
            store.put("key", str(number).encode(), if_absent=True)
        except AlreadyExistsError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(create, range(32))) == 1


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (None, None, b"0123456789"),
        (0, 4, b"0123"),
        (3, None, b"3456789"),
        (None, 2, b"01"),
        (8, 20, b"89"),
        (10, 12, b""),
        (50, 60, b""),
        (4, 4, b""),
    ],
)
def test_ranges(store: Store, start: int | None, end: int | None, expected: bytes) -> None:
    store.put("key", b"0123456789")
    assert store.get("key", start=start, end=end) == expected


def test_a_range_of_nothing_is_missing(store: Store) -> None:
    with pytest.raises(MissingError):
        store.get("key", start=0, end=10)


def test_what_is_not_there(store: Store) -> None:
    store.put("folder/key", b"x")
    for key in ("nothing", "folder/nothing", "folder", "folder/key/below", "nowhere/at/all"):
        with pytest.raises(MissingError, match=key):
            store.get(key)
        assert store.head(key) is None
    assert list(store.list("nowhere/")) == []


def test_delete_may_be_repeated(store: Store) -> None:
    store.put("folder/key", b"x")
    store.put("folder/other", b"y")
    for _ in range(2):
        store.delete("folder/key")
    store.delete("nowhere/at/all")
    assert store.head("folder/key") is None
    assert [entry.key for entry in store.list("")] == ["folder/other"]


def test_listing_is_by_prefix_and_in_order(store: Store) -> None:
    before = time.time()
    keys = ["a/1", "a/10", "a/2", "ab/1", "b/c/d/e", "b/c-d"]
    for key in reversed(keys):
        store.put(key, b"x" * len(key))
    assert [entry.key for entry in store.list("")] == sorted(keys)
    assert [entry.key for entry in store.list("a")] == ["a/1", "a/10", "a/2", "ab/1"]
    assert [entry.key for entry in store.list("a/")] == ["a/1", "a/10", "a/2"]
    assert [entry.key for entry in store.list("a/1")] == ["a/1", "a/10"]
    assert [entry.key for entry in store.list("b/c")] == ["b/c-d", "b/c/d/e"]
    assert [entry.key for entry in store.list("c")] == []
    for entry in store.list(""):
        assert entry.size == len(entry.key)
        if not isinstance(store, StoreInMemory):
            assert before - 5 < entry.modified < time.time() + 5


def test_listing_goes_on_over_many_pages(store: Store) -> None:
    if isinstance(store, RetryingStore):
        pytest.skip("the same as without")
    keys = [f"many/{number:04}" for number in range(1005)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: store.put(key, b""), keys))
    assert [entry.key for entry in store.list("many/")] == keys


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", "a/../b", ".", "a b", "ü", "a\n", "a%2F"])
def test_keys_that_some_store_could_misread_are_refused(store: Store, key: str) -> None:
    for call in (store.get, store.head, store.delete, lambda k: store.put(k, b"x")):
        with pytest.raises(ValueError, match="not a key"):
            call(key)


def test_many_threads_at_once(store: Store) -> None:
    def turn(number: int) -> None:
        data = hashlib.sha256(str(number).encode()).digest() * 4096
        store.put(f"thread/{number}", data)
        assert store.get(f"thread/{number}") == data
        assert store.get(f"thread/{number}", start=100, end=200) == data[100:200]

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(turn, range(64)))


def test_a_reader_never_sees_a_part_of_a_write(store: Store) -> None:
    versions = [bytes([number]) * 300_000 for number in range(4)]
    store.put("key", versions[0])

    def write() -> None:
        for number in range(40):
            store.put("key", versions[number % 4])

    seen = 0
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        while not writing.done() or not seen:
            with suppress(StoreUnavailableError):  # the embedded server may say "not now"
                assert store.get("key") in versions
                seen += 1
        writing.result()


@pytest.mark.parametrize("there_before", [False, True])
def test_an_upload_whose_sender_dies_in_the_middle_leaves_no_part_of_itself(
    s3_server: S3Server, there_before: bool
) -> None:
    settings = s3_server.settings(f"torn-{there_before}".lower())
    store = S3Store(settings)
    store.create_bucket()
    if there_before:
        store.put("key", b"earlier")
    client = boto3.client(
        "s3",
        endpoint_url=settings.endpoint,
        region_name=settings.region,
        aws_access_key_id=settings.access_key,
        aws_secret_access_key=settings.secret_key,
    )
    place = {"Bucket": settings.bucket, "Key": "key"}
    url = urlsplit(client.generate_presigned_url("put_object", Params=place))
    head = f"PUT {url.path}?{url.query} HTTP/1.1\r\nHost: {url.netloc}\r\nContent-Length: 3000000"
    with socket.create_connection((url.hostname, url.port), timeout=30) as sender:
        sender.sendall(head.encode() + b"\r\n\r\n" + bytes(2_000_000))
        sender.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: sender.recv(65536), b""))
    assert b" 200 " not in answer[:20]
    assert store.head("key") == (7 if there_before else None)


def test_a_server_that_is_gone_is_unavailable(tmp_path: Path) -> None:
    with running_s3_server(tmp_path) as server:
        store = server.new_store()
        store.put("key", b"x")
    for call in (store.get, store.head, store.delete, lambda k: store.put(k, b"y")):
        with pytest.raises(StoreUnavailableError, match="cannot be reached"):
            call("key")
    with pytest.raises(StoreUnavailableError):
        list(store.list(""))


def test_wrong_credentials_are_denied_without_showing_them(s3_server: S3Server) -> None:
    settings = replace(s3_server.settings("any-bucket"), secret_key="wrong" * 8)
    with pytest.raises(StoreDeniedError, match="credentials") as caught:
        S3Store(settings).create_bucket()
    assert "wrong" not in str(caught.value)
    assert "wrong" not in repr(settings)


def test_a_directory_nobody_may_write_is_named(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    (tmp_path / "store" / "taken").write_bytes(b"a file where a folder is needed")
    with pytest.raises(StoreError, match="taken/key"):
        store.put("taken/key", b"x")
    assert [path.name for path in (tmp_path / "store").rglob("*")] == ["taken"]
