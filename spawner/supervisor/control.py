"""The control socket: `control.sock` in the supervisor's folder, for root of this machine only.

One JSON object a line, one answer a line, as many as wanted on one connection:

    {"command": "status"}                         {"ok": true, "status": {…}}
    {"command": "suspend", "actor", "reason"}     {"ok": true, "status": {…}}    accepted, not done
    {"command": "stop", "actor", "reason"}        {"ok": true, "status": {…}}    accepted, not done
    {"command": "detach", "actor", "reason"}      {"ok": true, "status": {…}}    accepted, not done
    {"command": "watch"}                          a line {"ok": true, "status": {…}} now and after
                                                  each change, until one with an outcome

`status` is `status.Status`. What becomes of an accepted command shows in the status: a suspend that
cannot be done leaves phase running with `error` and `remedy`. Anything else is answered with
{"ok": false, "error": "…"}.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import struct
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from spawner.supervisor.board import Board
from spawner.supervisor.inside import opened
from spawner.supervisor.status import CONTROL_SOCKET, Status
from spawner.supervisor.wishes import Action, Wishes

_log = logging.getLogger(__name__)

LONGEST_LINE = 8192
FAREWELL_SECONDS = 1.0
_CREDENTIALS = struct.Struct("3i")
_ACTIONS = {"suspend": Action.SUSPEND, "stop": Action.STOP, "detach": Action.DETACH}


@dataclass(frozen=True)
class Command:
    """A line of a client."""

    command: str
    actor: str = "root"
    reason: str = ""


_COMMAND = TypeAdapter(Command)


def bind(directory: Path) -> socket.socket:
    """The listening socket, replacing what an earlier supervisor left. Mode 0600."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with opened(directory) as descriptor:
        with suppress(FileNotFoundError):
            os.unlink(CONTROL_SOCKET, dir_fd=descriptor)
        # The address of a UNIX socket holds 107 bytes; through the descriptor it is always short.
        sock.bind(f"/proc/self/fd/{descriptor}/{CONTROL_SOCKET}")
        os.chmod(CONTROL_SOCKET, 0o600, dir_fd=descriptor)
    sock.listen(16)
    sock.setblocking(False)
    return sock


def peer_uid(sock: socket.socket) -> int:
    """Who is at the other end, as the kernel knows it."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(raw)[1])


class ControlServer:
    """Serves one supervisor's board and wishes."""

    def __init__(self, sock: socket.socket, board: Board, wishes: Wishes) -> None:
        self._socket = sock
        self._board = board
        self._wishes = wishes
        self._clients: set[asyncio.StreamWriter] = set()
        self._watchers = 0
        self._unwatched = asyncio.Event()
        self._unwatched.set()

    async def run(self) -> None:
        """Serve until cancelled."""
        # A copy, so that this can be started again: the server closes what it was given.
        copy = self._socket.dup()
        # Python 3.13 would otherwise look for the socket's path to remove it at the end, which is
        # not its to remove: the next supervisor listens on the same one.
        keep: dict[str, Any] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
        server = await asyncio.start_unix_server(self._serve, sock=copy, limit=LONGEST_LINE, **keep)
        try:
            await server.serve_forever()
        finally:
            for writer in self._clients:
                writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients.add(writer)
        try:
            if peer_uid(writer.get_extra_info("socket")) != 0:
                await _send(writer, _refusal("only root may control a supervisor"))
                return
            while line := await reader.readline():
                await self._answer(line, writer)
        except ValueError:
            _log.warning("a control command was longer than %d bytes", LONGEST_LINE)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._clients.discard(writer)
            writer.close()

    async def _answer(self, line: bytes, writer: asyncio.StreamWriter) -> None:
        try:
            command = _COMMAND.validate_json(line)
        except ValidationError:
            await _send(writer, _refusal("not a JSON object with a command"))
            return
        if command.command == "watch":
            await self._watch(writer)
        elif command.command == "status":
            await _send(writer, _state(self._board.status))
        elif command.command in _ACTIONS:
            _log.info("%s asked for by %s: %s", command.command, command.actor, command.reason)
            action = _ACTIONS[command.command]
            self._wishes.ask(action, reason=command.reason, actor=command.actor)
            await _send(writer, _state(self._board.status))
        else:
            known = ", ".join(["status", "watch", *_ACTIONS])
            await _send(writer, _refusal(f"unknown command; there are: {known}"))

    async def _watch(self, writer: asyncio.StreamWriter) -> None:
        self._watchers += 1
        self._unwatched.clear()
        try:
            async for status in self._board.watch():
                await _send(writer, _state(status))
        finally:
            self._watchers -= 1
            if not self._watchers:
                self._unwatched.set()

    async def told_all(self) -> None:
        """Return once every watcher was sent the outcome, or after a second."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_SECONDS):
                await self._unwatched.wait()


def _state(status: Status) -> dict[str, Any]:
    return {"ok": True, "status": asdict(status)}


def _refusal(error: str) -> dict[str, Any]:
    return {"ok": False, "error": error}


async def _send(writer: asyncio.StreamWriter, value: dict[str, Any]) -> None:
    writer.write(json.dumps(value).encode() + b"\n")
    await writer.drain()
