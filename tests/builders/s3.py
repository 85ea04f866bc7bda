"""The real embedded S3 server on a free loopback port, and stores on it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from hub_config.store_server import SERVER_OPTIONS
from snapshot.stores.s3 import S3Settings, S3Store

START_SECONDS = 20.0
ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+")


@dataclass(frozen=True, slots=True)
class S3Server:
    """A running server. `data` is where it keeps objects: bucket, then key, as files."""

    endpoint: str
    access_key: str
    secret_key: str
    data: Path
    pid: int

    def kill(self) -> None:
        """As a crash does."""
        os.kill(self.pid, signal.SIGKILL)

    def settings(self, bucket: str) -> S3Settings:
        return S3Settings(self.endpoint, bucket, self.access_key, self.secret_key)

    def new_store(self) -> S3Store:
        """A store on an empty bucket."""
        store = S3Store(self.settings(f"test-{uuid.uuid4().hex[:16]}"))
        store.create_bucket()
        return store


@contextmanager
def running_s3_server(
    folder: Path, *options: str, again: S3Server | None = None
) -> Iterator[S3Server]:
    """rclone's server as `hubernate up` starts it, ended by its PID when the block is left. With
    `again` it has that one's data, address and credentials."""
    data, log_file = folder / "data", folder / "server.log"
    data.mkdir(exist_ok=True)
    access, secret = uuid.uuid4().hex[:20], uuid.uuid4().hex + uuid.uuid4().hex
    address = "127.0.0.1:0"
    if again is not None:
        access, secret = again.access_key, again.secret_key
        address = again.endpoint.removeprefix("http://")
    environment = {
        "PATH": os.environ["PATH"],
        "RCLONE_AUTH_KEY": f'"{access},{secret}"',
        "RCLONE_CONFIG": os.devnull,
    }
    program = str(Path(sys.executable).parent / "rclone")
    argv = [program, "serve", "s3", str(data), "--addr", address, *SERVER_OPTIONS, *options]
    with log_file.open("wb") as log:
        child = subprocess.Popen(argv, stderr=log, env=environment, cwd=folder)
    try:
        endpoint = _address(log_file, child)
        yield S3Server(endpoint, access, secret, data, child.pid)
    finally:
        child.kill()
        child.wait()


def _address(log_file: Path, child: subprocess.Popen[bytes]) -> str:
    """The server says where it listens once it does."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if child.poll() is not None:
            break
        if found := ADDRESS.search(log_file.read_text()):
            return found.group()
        time.sleep(0.02)
    raise RuntimeError(f"the S3 server did not start: {log_file.read_text()}")


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One server for all tests; each takes its own bucket with `new_store`."""
    with running_s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server
