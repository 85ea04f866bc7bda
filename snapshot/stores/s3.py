"""Objects in one bucket of an S3 service, through boto3."""

from __future__ import annotations

import builtins
import io
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from boto3.session import Session
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    HTTPClientError,
    IncompleteReadError,
)
from botocore.exceptions import ConnectionError as NoConnectionError
from urllib3.exceptions import HTTPError

from snapshot.errors import (
    AlreadyExistsError,
    MissingError,
    StoreDeniedError,
    StoreError,
    StoreUnavailableError,
)
from snapshot.stores.base import Data, Entry, Size, check_key

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

MISSING = frozenset({"NoSuchKey", "NoSuchUpload", "404", "NotFound"})
EXISTS = frozenset({"PreconditionFailed", "412"})
NOT_NOW = frozenset({"SlowDown", "RequestTimeout", "ConditionalRequestConflict", "Throttling"})
UNREACHABLE = (NoConnectionError, HTTPClientError, IncompleteReadError)
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


@dataclass(frozen=True, slots=True)
class S3Settings:
    """Where the bucket is. Seconds bound the connection and each wait for the next bytes;
    `connections` should be at least the number of threads that use the store."""

    endpoint: str
    bucket: str
    access_key: str
    secret_key: str = field(repr=False)
    region: str = "us-east-1"
    connections: int = 32
    connect_seconds: float = 5.0
    read_seconds: float = 30.0


class S3Store:
    """`Store` on a bucket. See `create_bucket` and `excludes` for what is probed."""

    def __init__(self, settings: S3Settings) -> None:
        self._bucket = settings.bucket
        self._where = f"{settings.endpoint} (bucket {settings.bucket})"
        self._client = _client(settings)
        self._excludes: bool | None = None

    def create_bucket(self) -> None:
        """Make the bucket if there is none."""
        try:
            with self._translated():
                self._client.head_bucket(Bucket=self._bucket)
        except MissingError:
            with self._translated():
                self._client.create_bucket(Bucket=self._bucket)

    @property
    def excludes(self) -> bool:
        """Found out once, by writing one object twice: servers exist that accept the condition and
        ignore it."""
        if self._excludes is None:
            self._excludes = self._probe()
        return self._excludes

    def put(self, key: str, data: Data, *, if_absent: bool = False) -> None:
        check_key(key)
        conditional = if_absent and self.excludes
        if if_absent and not conditional and self.head(key) is not None:
            raise AlreadyExistsError(f"The object {key} exists already in {self._where}.")
        self._put(key, data, conditional=conditional)

    def get(self, key: str, *, start: int | None = None, end: int | None = None) -> bytes:
        first = start or 0
        if end is not None and end <= first:
            return b""
        options: dict[str, Any] = {}
        if start is not None or end is not None:
            options["Range"] = f"bytes={first}-{'' if end is None else end - 1}"
        try:
            with self._translated(check_key(key)):
                answer = self._client.get_object(Bucket=self._bucket, Key=key, **options)
                data: bytes = answer["Body"].read()
        except _OutOfRange:
            return b""
        if len(data) != answer["ContentLength"]:
            raise StoreUnavailableError(f"{self._where} sent {key} only in part.")
        return data

    def head(self, key: str) -> Size | None:
        try:
            with self._translated(check_key(key)):
                answer = self._client.head_object(Bucket=self._bucket, Key=key)
        except MissingError:
            return None
        return Size(answer["ContentLength"])

    def list(self, prefix: str) -> Iterator[Entry]:
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=prefix
        )
        iterator = iter(pages)
        while True:
            with self._translated():
                page = next(iterator, None)
            if page is None:
                return
            for item in page.get("Contents", ()):
                modified = item["LastModified"].timestamp()
                yield Entry(item["Key"], Size(item["Size"]), modified)

    def delete(self, key: str) -> None:
        with self._translated(check_key(key)):
            self._client.delete_object(Bucket=self._bucket, Key=key)

    def sweep(self, before: float) -> int:
        """We store objects in one piece; parts come from other programs, and cost as objects do."""
        swept = 0
        for upload in self._broken_off():
            if upload["Initiated"].timestamp() < before:
                with suppress(MissingError), self._translated(upload["Key"]):
                    self._client.abort_multipart_upload(
                        Bucket=self._bucket, Key=upload["Key"], UploadId=upload["UploadId"]
                    )
                swept += 1
        return swept

    def _broken_off(self) -> builtins.list[Any]:
        """Uploads in parts that were not completed; none where the service does not tell."""
        pages = self._client.get_paginator("list_multipart_uploads").paginate(Bucket=self._bucket)
        try:
            with self._translated():
                return [upload for page in pages for upload in page.get("Uploads", ())]
        except (StoreDeniedError, MissingError):
            return []

    def _put(self, key: str, data: Data, *, conditional: bool) -> None:
        options: dict[str, Any] = {"IfNoneMatch": "*"} if conditional else {}
        body: Any = data if isinstance(data, bytes | bytearray) else io.BytesIO(data)
        with self._translated(key):
            self._client.put_object(Bucket=self._bucket, Key=key, Body=body, **options)

    def _probe(self) -> bool:
        key = f"probe/{uuid.uuid4().hex}"
        self._put(key, b"1", conditional=False)
        try:
            self._put(key, b"2", conditional=True)
        except AlreadyExistsError:
            return True
        except StoreDeniedError:  # some services refuse the header itself
            return False
        finally:
            self.delete(key)
        return False

    @contextmanager
    def _translated(self, key: str = "") -> Iterator[None]:
        """boto3's and urllib3's errors as ours."""
        try:
            yield
        except ClientError as error:
            raise self._error(error, key) from error
        except (*UNREACHABLE, HTTPError, OSError) as error:
            message = f"The object store {self._where} cannot be reached ({type(error).__name__})."
            raise StoreUnavailableError(message) from error
        except BotoCoreError as error:
            raise StoreDeniedError(f"The object store {self._where}: {error}.") from error

    def _error(self, error: ClientError, key: str) -> StoreError:
        answer: Any = error.response
        code = str(answer.get("Error", {}).get("Code", ""))
        status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        if code in MISSING:
            return MissingError(f"There is no object {key or '(bucket)'} in {self._where}.")
        if code in EXISTS:
            return AlreadyExistsError(f"The object {key} exists already in {self._where}.")
        if code == "InvalidRange":
            return _OutOfRange(code)
        if code in NOT_NOW or status >= 500 or status == 429:
            return StoreUnavailableError(f"{self._where} answered {code or status}.")
        return StoreDeniedError(
            f"{self._where} refused the request: {code or status}.",
            remedy="Check the store's credentials, bucket and rights.",
        )


class _OutOfRange(StoreError):
    """The range begins at or behind the object's end."""


def _client(settings: S3Settings) -> S3Client:
    address = urlsplit(settings.endpoint)
    # A signature over the body costs a hash of every byte. Content is authenticated by us when it
    # is read; on the way TLS, or the loopback, is enough.
    sign_bodies = address.scheme != "https" and address.hostname not in LOOPBACK
    config = Config(
        signature_version="s3v4",
        s3={"addressing_style": "path", "payload_signing_enabled": sign_bodies},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        max_pool_connections=settings.connections,
        connect_timeout=settings.connect_seconds,
        read_timeout=settings.read_seconds,
        retries={"total_max_attempts": 1},
        # Proxies of the environment are for the outside world, never for the store's own address.
        proxies={} if address.hostname in LOOPBACK else None,
    )
    return Session().client(
        "s3",
        endpoint_url=settings.endpoint,
        region_name=settings.region,
        aws_access_key_id=settings.access_key,
        aws_secret_access_key=settings.secret_key,
        config=config,
    )
