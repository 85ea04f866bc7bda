"""Speaking to a Jupyter Server as a browser does: REST and kernel sockets."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from tornado.httpclient import HTTPRequest
from tornado.websocket import WebSocketClientConnection, websocket_connect

from hub_config.demo.browserless import hang_up

TOKEN = "a-token-for-tests-only"


@asynccontextmanager
async def page(address: str | HTTPRequest) -> AsyncIterator[WebSocketClientConnection]:
    """A page's websocket, closed for good at the end."""
    socket = await websocket_connect(address)
    try:
        yield socket
    finally:
        await hang_up(socket)


class Server:
    """A server on a loopback port."""

    def __init__(self, port: int, *, base: str = "/") -> None:
        self.url = f"http://127.0.0.1:{port}{base}"
        self._headers = {"Authorization": f"token {TOKEN}"}

    async def call(self, method: str, path: str, **options: Any) -> Any:
        """A REST call's JSON."""
        async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
            url = self.url + path
            answer = await client.request(method, url, headers=self._headers, **options)
            answer.raise_for_status()
            return answer.json() if answer.content else None

    async def text(self, path: str) -> str:
        """What a GET brings, as it is."""
        async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
            answer = await client.get(self.url + path, headers=self._headers)
            answer.raise_for_status()
            return answer.text

    async def start_kernel(self) -> str:
        """A new kernel's id."""
        return str((await self.call("POST", "api/kernels", json={}))["id"])

    async def execute(self, kernel: str, code: str, *, wait: bool = True) -> str:
        """What the code prints. With `wait=False` returns as soon as the kernel is busy with it."""
        async with page(self.channel(kernel)) as socket:
            request = self.message("execute_request", _cell(code))
            await socket.write_message(json.dumps(request))
            async with asyncio.timeout(60):
                return await _follow(socket, request["header"]["msg_id"], wait)

    def channel(self, kernel: str) -> HTTPRequest:
        """How a page opens its socket to a kernel."""
        url = f"{self.url}api/kernels/{kernel}/channels".replace("http", "ws", 1)
        return HTTPRequest(url, headers=self._headers, connect_timeout=20, request_timeout=20)

    def message(self, kind: str, content: dict[str, Any]) -> dict[str, Any]:
        """A message of a page to a kernel."""
        header = {
            "msg_id": uuid.uuid4().hex,
            "msg_type": kind,
            "username": "test",
            "session": uuid.uuid4().hex,
            "version": "5.3",
        }
        return {
            "header": header,
            "parent_header": {},
            "metadata": {},
            "content": content,
            "channel": "shell",
            "buffers": [],
        }


async def _follow(socket: Any, asked: str, wait: bool) -> str:
    printed = ""
    while True:
        raw = await socket.read_message()
        assert raw is not None, "the kernel's socket was closed"
        message = json.loads(raw)
        if message["parent_header"].get("msg_id") != asked:
            continue
        content = message["content"]
        if message["msg_type"] == "stream":
            printed += content["text"]
        elif message["msg_type"] == "error":
            raise AssertionError("\n".join(content["traceback"]))
        elif (message["msg_type"] == "execute_input" and not wait) or (
            message["msg_type"] == "status" and content["execution_state"] == "idle"
        ):
            return printed


def _cell(code: str) -> dict[str, Any]:
    return {
        "code": code,
        "silent": False,
        "store_history": True,
        "user_expressions": {},
        "allow_stdin": False,
        "stop_on_error": True,
    }
