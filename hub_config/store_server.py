"""The embedded S3 server: one process on the loopback address, one folder, signed requests only."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

from hub_config.children import Program
from hub_config.secrets_store import SecretFiles
from hub_config.settings import HOST, LocalSettings
from snapshot.model import StoreSettings

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

BUCKET = "hubernate"
REGION = "us-east-1"

SERVER_OPTIONS = (
    # Our packs are authenticated end to end: hashing each answer again only halves the rate.
    "--no-checksum",
    "--etag-hash=",
    # Nor need what is written be hashed: 3.5 of the server's 6.5 processor seconds a GiB were that.
    # Lengths are still compared.
    "--ignore-checksum",
)


def store_settings(settings: LocalSettings, secret_files: SecretFiles) -> StoreSettings:
    """Where this machine's snapshots go, for whoever stores them."""
    folder = settings.folder()
    secret_files.store_credentials()
    return StoreSettings(
        kind="s3",
        location=settings.store_url,
        bucket=BUCKET,
        region=REGION,
        credentials_file=str(secret_files.store_credentials_file),
        keys_directory=str(folder.keys),
        cache_directory=str(folder.cache),
    )


def store_program(
    settings: LocalSettings, secret_files: SecretFiles, environment: dict[str, str]
) -> Program:
    """rclone's S3 server. The key travels in the environment, which only root can read, and not in
    the argument vector, which everybody can; the variable is parsed as CSV, hence the quotes."""
    folder = settings.folder()
    access, secret = secret_files.store_credentials()
    data = folder.store / "data"
    data.mkdir(mode=0o700, exist_ok=True)
    return Program(
        name="store",
        argv=(
            str(folder.venv / "bin/rclone"),
            "serve",
            "s3",
            str(data),
            "--addr",
            f"{HOST}:{settings.ports.store}",
            *SERVER_OPTIONS,
            "--cache-dir",
            str(folder.store / "parts"),
        ),
        environment=environment
        | {"RCLONE_AUTH_KEY": f'"{access},{secret}"', "RCLONE_CONFIG": os.devnull},
        log_file=folder.logs / "store.log",
        probe=StoreProbe(settings.store_url, access, secret),
        ready_seconds=20.0,
    )


class StoreProbe:
    """Ready means: a signed request is answered and the bucket exists."""

    def __init__(self, url: str, access: str, secret: str) -> None:
        self._url, self._access, self._secret = url, access, secret
        self._client: S3Client | None = None

    async def __call__(self) -> str:
        return await asyncio.to_thread(self._probe)

    def _probe(self) -> str:
        from botocore.exceptions import BotoCoreError, ClientError

        client = self._client = self._client or s3_client(self._url, self._access, self._secret)
        try:
            names = {bucket["Name"] for bucket in client.list_buckets()["Buckets"]}
            if BUCKET not in names:
                client.create_bucket(Bucket=BUCKET)
        except (BotoCoreError, ClientError) as error:
            return str(error)
        return ""


def s3_client(url: str, access: str, secret: str) -> S3Client:
    """A client that fails fast: the embedded server is on this machine."""
    import boto3
    from botocore.config import Config

    quick = Config(connect_timeout=2, read_timeout=5, retries={"max_attempts": 1})
    return boto3.client(
        "s3",
        endpoint_url=url,
        region_name=REGION,
        aws_access_key_id=access,
        aws_secret_access_key=secret,
        config=quick,
    )


def stored_bytes(folder: Path) -> int:
    """Bytes of all objects in the embedded store's folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
