"""What interrupted writes leave where no listing shows it, on every store."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from snapshot.stores.directory import DirectoryStore
from snapshot.stores.retry import RetryingStore
from tests.builders.s3 import S3Server, s3_server

__all__ = ["s3_server"]


def test_a_file_that_a_killed_writer_left_goes_once_it_is_old(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    store.put("packs/ada/one", b"whole")
    (tmp_path / "store" / "packs" / "ada" / ".new-0123").write_bytes(b"half")
    assert store.sweep(time.time() - 3600) == 0
    assert store.sweep(time.time() + 3600) == 1
    assert [path.name for path in (tmp_path / "store").rglob("*") if path.is_file()] == ["one"]
    assert store.get("packs/ada/one") == b"whole"


def test_an_upload_in_parts_that_nobody_completed_goes_once_it_is_old(s3_server: S3Server) -> None:
    store = s3_server.new_store()
    store.put("packs/ada/one", b"whole")
    where = {"Bucket": store._bucket, "Key": "packs/ada/two"}
    upload = store._client.create_multipart_upload(**where)
    store._client.upload_part(
        **where, UploadId=upload["UploadId"], PartNumber=1, Body=bytes(5 * 2**20)
    )
    retrying = RetryingStore(store)
    assert retrying.sweep(time.time() - 3600) == 0
    assert retrying.sweep(time.time() + 3600) == 1
    assert retrying.sweep(time.time() + 3600) == 0
    assert "Uploads" not in store._client.list_multipart_uploads(Bucket=store._bucket)
    assert [entry.key for entry in store.list("")] == ["packs/ada/one"]


def test_a_service_that_lists_no_uploads_has_nothing_to_sweep(s3_server: S3Server) -> None:
    store = s3_server.new_store()
    store._bucket = "there-is-no-such-bucket"
    assert store.sweep(time.time()) == 0


@pytest.mark.parametrize("kind", ["directory", "s3"])
def test_writes_under_way_are_not_swept(kind: str, s3_server: S3Server, tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "s") if kind == "directory" else s3_server.new_store()
    store.put("packs/ada/one", b"whole")
    assert store.sweep(time.time() + 3600) == 0
    assert store.get("packs/ada/one") == b"whole"
