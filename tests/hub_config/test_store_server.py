"""The embedded store: the real server, signed requests only, no secret where others can read it."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import psutil
import pytest
import pytest_asyncio
from botocore.exceptions import ClientError

from hub_config import state
from hub_config.children import Children, Program
from hub_config.paths import StateFolder, state_folder
from hub_config.programs import base_environment
from hub_config.secrets_store import SecretFiles
from hub_config.settings import LocalSettings, Ports
from hub_config.store_server import BUCKET, s3_client, store_program


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def settings(tmp_path: Path) -> LocalSettings:
    folder = StateFolder(tmp_path / "state", state_folder().downloads)
    state.create(folder)
    return LocalSettings(str(folder.root), str(folder.downloads), Ports(free_port() - 4))


@pytest.fixture
def program(settings: LocalSettings) -> Program:
    secret_files = SecretFiles(settings.folder().secrets)
    return store_program(settings, secret_files, base_environment(settings, os.environ))


@pytest_asyncio.fixture
async def children(settings: LocalSettings, program: Program) -> AsyncIterator[Children]:
    made = Children(settings.folder().children_file)
    try:
        await made.start(program)
        yield made
    finally:
        await made.end()


async def test_the_bucket_is_there_and_keeps_objects(
    settings: LocalSettings, children: Children
) -> None:
    access, secret = SecretFiles(settings.folder().secrets).store_credentials()
    client = s3_client(settings.store_url, access, secret)
    client.put_object(Bucket=BUCKET, Key="a/b", Body=b"kept")
    assert client.get_object(Bucket=BUCKET, Key="a/b")["Body"].read() == b"kept"


async def test_nobody_reads_without_the_key(settings: LocalSettings, children: Children) -> None:
    access, _ = SecretFiles(settings.folder().secrets).store_credentials()
    async with httpx.AsyncClient() as anybody:
        assert (await anybody.get(f"{settings.store_url}/{BUCKET}")).status_code >= 400
    with pytest.raises(ClientError, match="SignatureDoesNotMatch"):
        s3_client(settings.store_url, access, "0" * 40).list_buckets()


async def test_the_key_is_in_no_argument_vector(
    settings: LocalSettings, program: Program, children: Children
) -> None:
    _, secret = SecretFiles(settings.folder().secrets).store_credentials()
    record = children.record("store")
    assert record is not None
    assert all(secret not in part for part in psutil.Process(record.pid).cmdline())
    assert secret not in settings.folder().children_file.read_text()
