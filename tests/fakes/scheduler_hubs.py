"""Small HTTP servers that stand for a Hub, real sockets included."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class FakeHub:
    """Answers `/user` from `users` (token -> model) and counts every request. Answers only while
    `released` is set."""

    url: str = ""
    users: dict[str, dict[str, Any]] = field(default_factory=dict)
    start_status: int = 202
    user_status: int = 200
    starts: list[str] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    questions: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    released: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.released.set()

    def answer(self, method: str, path: str, token: str) -> tuple[int, dict[str, Any]]:
        if method == "GET" and path == "/hub/api/user":
            self.questions += 1
            if self.user_status != 200:
                return self.user_status, {}
            model = self.users.get(token)
            return (200, model) if model else (403, {"message": "no such token"})
        self.starts.append(path)
        self.tokens.append(token)
        self.changed.set()
        return self.start_status, {"message": "a reason"}


@asynccontextmanager
async def fake_hub(**values: Any) -> AsyncIterator[FakeHub]:
    """A Hub that starts nothing."""
    hub = FakeHub(**values)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            method, path, _ = head.split("\r\n")[0].split(" ")
            lines = [line.partition(": ") for line in head.split("\r\n")[1:]]
            headers = {name.lower(): value for name, _, value in lines}
            token = headers.get("authorization", "").rpartition(" ")[2]
            status, body = hub.answer(method, path, token)
            await hub.released.wait()
            content = json.dumps(body).encode()
            writer.write(
                b"HTTP/1.1 %d x\r\nContent-Type: application/json\r\nConnection: close\r\n"
                b"Content-Length: %d\r\n\r\n%s" % (status, len(content), content)
            )
            await writer.drain()
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    hub.url = f"http://127.0.0.1:{port}/hub/api"
    try:
        yield hub
    finally:
        server.close()
        await server.wait_closed()


def hub_user(name: str, *, admin: bool = False, **more: Any) -> dict[str, Any]:
    """What the Hub says of a user whose token may be used with our service."""
    scopes = ["access:services!service=hubernate", "read:users:name!user"]
    return {
        "kind": "user",
        "name": name,
        "admin": admin,
        "groups": [],
        "scopes": [*scopes, "admin:users"] if admin else scopes,
        **more,
    }
