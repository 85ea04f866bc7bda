"""A researcher without a browser: logs in at the real Hub, opens a server, runs cells, types.

Everything goes through the public address, proxy included, with the cookies and tokens that a
browser would use. Used by the demo, by the benchmarks and by the end-to-end tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from tornado.httpclient import HTTPRequest
from tornado.websocket import WebSocketClientConnection, websocket_connect

HANG_UP_SECONDS = 2.0


class StoryError(Exception):
    """Something that should have happened did not; the message says what."""


async def hang_up(socket: WebSocketClientConnection) -> None:
    """Close a websocket and see it closed: what is left open would be closed by nobody."""
    socket.close()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(HANG_UP_SECONDS):
            while await socket.read_message() is not None:
                pass


def is_last(event: dict[str, Any]) -> bool:
    """Whether an event of a start's progress says how it ended."""
    return bool(event.get("ready") or event.get("failed"))


@dataclass(slots=True)
class Researcher:
    """One logged-in user. `token` is an API token of that user, obtained through the login form."""

    url: str
    name: str
    token: str
    http: httpx.AsyncClient

    @property
    def api(self) -> str:
        return f"{self.url}/hub/api"

    def server_url(self, server: str = "") -> str:
        """Where the user's server answers."""
        return f"{self.url}/user/{self.name}/{server + '/' if server else ''}"

    async def request(
        self, method: str, url: str, *, expect: tuple[int, ...] = (200,), **more: Any
    ) -> httpx.Response:
        """One request with the user's token. Raises `StoryError` for an unexpected status."""
        response = await self.http.request(
            method, url, headers={"Authorization": f"token {self.token}"}, **more
        )
        if response.status_code not in expect:
            text = response.text[:500]
            raise StoryError(f"{method} {url} answered {response.status_code}: {text}")
        return response

    async def open(
        self, options: dict[str, Any], *, server: str = "", timeout: float = 90.0
    ) -> None:
        """Start the server through the Hub's REST API and wait until it is ready."""
        path = f"servers/{server}" if server else "server"
        await self.request(
            "POST", f"{self.api}/users/{self.name}/{path}", json=options, expect=(201, 202)
        )
        await self.until_ready(server, timeout=timeout)

    async def model(self, server: str = "") -> dict[str, Any] | None:
        """The Hub's model of the server, None when it is not running or pending."""
        answer = (await self.request("GET", f"{self.api}/users/{self.name}")).json()
        model: dict[str, Any] | None = answer["servers"].get(server)
        return model

    async def until_ready(self, server: str = "", *, timeout: float = 90.0) -> None:
        """Wait for `ready`; a failed start raises with the Hub's own words."""
        async with asyncio.timeout(timeout):
            while True:
                model = await self.model(server)
                if model and model["ready"]:
                    return
                if model is None or not model["pending"]:
                    raise StoryError(f"{self.name}'s server did not start: {model}")
                await self._until_progress_ends(server)

    async def _until_progress_ends(self, server: str) -> None:
        """Listen to the start's progress, as the Hub's page does: asking again and again would take
        from the Hub the time that it needs for the start."""
        path = f"servers/{server}" if server else "server"
        url = f"{self.api}/users/{self.name}/{path}/progress"
        headers = {"Authorization": f"token {self.token}"}
        async with self.http.stream("GET", url, headers=headers, timeout=None) as events:
            async for line in events.aiter_lines():
                if line.startswith("data:") and is_last(json.loads(line.removeprefix("data:"))):
                    return

    async def until_stopped(self, server: str = "", *, timeout: float = 60.0) -> None:
        """Wait until the Hub shows the server as stopped."""
        async with asyncio.timeout(timeout):
            while True:
                model = await self.model(server)
                if model is None or (model["stopped"] and not model["pending"]):
                    return
                await asyncio.sleep(0.05)

    async def sessions(self) -> list[dict[str, Any]]:
        """What the Hub's home page shows of the user's sessions."""
        answer = (await self.request("GET", f"{self.url}/hub/hubernate/sessions")).json()
        found: list[dict[str, Any]] = answer["sessions"]
        return found

    async def act(self, action: str, server: str = "") -> None:
        """Press a button of the home page: suspend, resume, fresh, discard or stop."""
        await self.request(
            "POST",
            f"{self.url}/hub/hubernate/sessions/action",
            json={"server": server, "action": action},
            expect=(200, 202),
        )

    async def fork(self, name: str, server: str = "") -> str:
        """Press Fork on the home page; the new server's name."""
        answer = await self.request(
            "POST",
            f"{self.url}/hub/hubernate/sessions/fork",
            json={"server": server, "name": name},
        )
        return str(answer.json()["server"])

    async def kernels(self, server: str = "") -> list[dict[str, Any]]:
        answer = await self.request("GET", f"{self.server_url(server)}api/kernels")
        found: list[dict[str, Any]] = answer.json()
        return found

    async def new_kernel(self, server: str = "") -> str:
        """Start a kernel and return its id."""
        answer = await self.request(
            "POST",
            f"{self.server_url(server)}api/kernels",
            json={"name": "python3"},
            expect=(201,),
        )
        return str(answer.json()["id"])

    def _websocket_request(self, path: str, server: str) -> HTTPRequest:
        url = self.server_url(server).replace("http", "ws", 1) + path
        return HTTPRequest(url, headers={"Authorization": f"token {self.token}"})

    @asynccontextmanager
    async def kernel(self, kernel_id: str, server: str = "") -> AsyncIterator[Kernel]:
        """A connection to a kernel's channels, closed at the end."""
        path = f"api/kernels/{kernel_id}/channels?session_id={uuid.uuid4().hex}"
        socket = await websocket_connect(self._websocket_request(path, server))
        try:
            yield Kernel(socket)
        finally:
            await hang_up(socket)

    async def new_terminal(self, server: str = "") -> str:
        answer = await self.request(
            "POST", f"{self.server_url(server)}api/terminals", json={}, expect=(200, 201)
        )
        return str(answer.json()["name"])

    @asynccontextmanager
    async def terminal(self, name: str, server: str = "") -> AsyncIterator[Terminal]:
        """A connection to a terminal, closed at the end."""
        request = self._websocket_request(f"terminals/websocket/{name}", server)
        socket = await websocket_connect(request)
        try:
            yield Terminal(socket)
        finally:
            await hang_up(socket)


@dataclass(slots=True)
class Kernel:
    """One websocket to a kernel."""

    socket: WebSocketClientConnection
    outputs: dict[str, list[str]] = field(default_factory=dict)

    async def send(self, code: str) -> str:
        """Send a cell without waiting; returns the request's message id."""
        message_id = uuid.uuid4().hex
        content = {"code": code, "silent": False, "store_history": True, "allow_stdin": False}
        header = {
            "msg_id": message_id,
            "msg_type": "execute_request",
            "username": "",
            "session": uuid.uuid4().hex,
            "version": "5.3",
        }
        message = {
            "header": header,
            "parent_header": {},
            "metadata": {},
            "content": content,
            "channel": "shell",
            "buffers": [],
        }
        await self.socket.write_message(json.dumps(message))
        return message_id

    async def _next(self) -> dict[str, Any]:
        text = await self.socket.read_message()
        if text is None:
            raise StoryError("the connection to the kernel was closed")
        message: dict[str, Any] = json.loads(text)
        return message

    def _keep(self, message: dict[str, Any]) -> None:
        parent = message["parent_header"].get("msg_id", "")
        content = message["content"]
        text = content.get("text") or content.get("data", {}).get("text/plain")
        if message["msg_type"] == "error":
            text = "\n".join(content["traceback"])
        if text and message["msg_type"] in {"stream", "execute_result", "error"}:
            self.outputs.setdefault(parent, []).append(text)

    async def finish(self, message_id: str, *, timeout: float = 60.0) -> str:
        """Wait for the cell's end and return its output. Raises `StoryError` when it failed."""
        replied = idle = False
        status = ""
        async with asyncio.timeout(timeout):
            while not (replied and idle):
                message = await self._next()
                self._keep(message)
                if message["parent_header"].get("msg_id") != message_id:
                    continue
                if message["msg_type"] == "execute_reply":
                    replied, status = True, message["content"]["status"]
                if message["msg_type"] == "status":
                    idle = message["content"]["execution_state"] == "idle"
        output = "".join(self.outputs.pop(message_id, []))
        if status != "ok":
            raise StoryError(f"the cell ended with {status}: {output}")
        return output.strip()

    async def until_output(self, message_id: str, pattern: str, *, timeout: float = 60.0) -> str:
        """Wait until a running cell has printed something that matches."""
        async with asyncio.timeout(timeout):
            while not re.search(pattern, "".join(self.outputs.get(message_id, []))):
                self._keep(await self._next())
        return "".join(self.outputs[message_id])

    async def run(self, code: str, *, timeout: float = 60.0) -> str:
        """Run a cell and return what it printed or its value."""
        return await self.finish(await self.send(code), timeout=timeout)


@dataclass(slots=True)
class Terminal:
    """One websocket to a terminal."""

    socket: WebSocketClientConnection
    seen: str = ""

    async def type(self, text: str) -> None:
        await self.socket.write_message(json.dumps(["stdin", text]))

    async def until(self, pattern: str, *, timeout: float = 30.0) -> str:
        """Wait until the terminal has shown something that matches; returns all it showed."""
        async with asyncio.timeout(timeout):
            while not re.search(pattern, self.seen):
                text = await self.socket.read_message()
                if text is None:
                    raise StoryError("the connection to the terminal was closed")
                kind, *rest = json.loads(text)
                if kind == "stdout":
                    self.seen += str(rest[0])
        return self.seen


async def log_in(url: str, name: str, password: str) -> Researcher:
    """Log in through the Hub's form and fetch an API token as a browser user would."""
    http = httpx.AsyncClient(timeout=120.0, follow_redirects=True)
    await http.get(f"{url}/hub/login")
    xsrf = http.cookies.get("_xsrf", path="/hub/") or http.cookies.get("_xsrf") or ""
    form = {"username": name, "password": password, "_xsrf": xsrf}
    answer = await http.post(f"{url}/hub/login?next=/hub/token", data=form)
    if answer.url.path != "/hub/token":
        raise StoryError(f"log-in of {name} failed: {answer.status_code} at {answer.url}")
    xsrf = next((c.value or "" for c in http.cookies.jar if c.name == "_xsrf"), "")
    created = await http.post(
        f"{url}/hub/api/users/{name}/tokens",
        json={"note": "without a browser"},
        headers={"X-XSRFToken": xsrf, "Referer": f"{url}/hub/token"},
    )
    if created.status_code != 201:
        raise StoryError(f"no token for {name}: {created.status_code} {created.text[:300]}")
    token = created.json()["token"]
    http.cookies.clear()
    return Researcher(url, name, token, http)
