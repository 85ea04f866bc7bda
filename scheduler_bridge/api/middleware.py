"""What every request passes: the Hub's prefix, and the limit on bodies."""

from __future__ import annotations

from typing import Final

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scheduler_bridge.api.problems import answer
from scheduler_bridge.errors import Refused
from scheduler_bridge.wire import Problem

MAX_BODY_BYTES: Final = 2**20


class HubPrefix:
    """The Hub's proxy passes requests on under the service's prefix, unchanged; programs on this
    machine leave it out. Both reach the same routes."""

    def __init__(self, app: ASGIApp, *, prefix: str) -> None:
        self._app = app
        self._prefix = prefix.rstrip("/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._prefix:
            path = scope["path"]
            if path == self._prefix or path.startswith(self._prefix + "/"):
                scope = {**scope, "root_path": self._prefix}
        await self._app(scope, receive, send)


class BodyLimit:
    """Refuses bodies above `MAX_BODY_BYTES`, announced or not."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if not announced.isdigit() or int(announced) > MAX_BODY_BYTES:
            message = f"The body may have {MAX_BODY_BYTES} bytes at most."
            await answer(413, Problem(Refused.code, message))(scope, receive, send)
            return
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > MAX_BODY_BYTES:
                raise HTTPException(413, f"The body may have {MAX_BODY_BYTES} bytes at most.")
            return message

        await self._app(scope, counted, send)
