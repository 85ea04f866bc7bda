"""Asking a supervisor through its control socket (as root on its machine)."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from spawner.supervisor.status import CONTROL_SOCKET, Status

_STATUS = TypeAdapter(Status)

CONNECT_SECONDS = 5.0
LONGEST_ANSWER = 2**20


class NotAnsweringError(Exception):
    """No supervisor answers in this folder."""


class RefusedError(Exception):
    """The supervisor refuses the command; the message says why."""


@asynccontextmanager
async def _connected(
    directory: Path,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            # The address of a UNIX socket holds 107 bytes; through a descriptor it is always short.
            path = f"/proc/self/fd/{descriptor}/{CONTROL_SOCKET}"
            async with asyncio.timeout(CONNECT_SECONDS):
                reader, writer = await asyncio.open_unix_connection(path, limit=LONGEST_ANSWER)
        finally:
            os.close(descriptor)
    except (OSError, TimeoutError) as error:
        raise NotAnsweringError(f"no supervisor answers in {directory}: {error}") from error
    try:
        yield reader, writer
    finally:
        writer.close()


async def _send(writer: asyncio.StreamWriter, command: dict[str, Any]) -> None:
    writer.write(json.dumps(command).encode() + b"\n")
    await writer.drain()


def _read(line: bytes) -> Status:
    if not line:
        raise NotAnsweringError("the supervisor ended")
    answer = json.loads(line)
    if not answer.get("ok"):
        raise RefusedError(str(answer.get("error", "no reason given")))
    return _STATUS.validate_python(answer["status"])


async def ask(directory: Path, command: str, *, actor: str = "root", reason: str = "") -> Status:
    """Send `status`, `suspend`, `stop` or `detach` (see `control`); returns the status at the time
    it was accepted. Raises `NotAnsweringError`, `RefusedError`."""
    async with _connected(directory) as (reader, writer):
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await _send(writer, {"command": command, "actor": actor, "reason": reason})
                return _read(await reader.readline())
        except (ConnectionError, TimeoutError) as error:
            raise NotAnsweringError(f"the supervisor in {directory} hung up") from error


async def watch(directory: Path) -> AsyncIterator[Status]:
    """The status now and after each change; ends after one with an outcome, or when the supervisor
    ends. Raises `NotAnsweringError` if there is none."""
    async with _connected(directory) as (reader, writer):
        try:
            await _send(writer, {"command": "watch"})
        except ConnectionError as error:
            raise NotAnsweringError(f"the supervisor in {directory} hung up") from error
        while line := await _line_of(reader):
            status = _read(line)
            yield status
            if status.outcome is not None:
                return


async def _line_of(reader: asyncio.StreamReader) -> bytes:
    """The next line, empty when the supervisor ended: one that was killed may reset the connection."""
    try:
        return await reader.readline()
    except ConnectionError:
        return b""
