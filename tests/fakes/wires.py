"""Ways to a real S3 server, named by how they fail. Each is an HTTP proxy on a loopback port.

with WireThatSaysNotNow(server, times=5).running() as wire:
    store = S3Store(replace(server.settings("bucket"), endpoint=wire.endpoint))
"""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from urllib.parse import urlsplit

from tests.builders.s3 import S3Server

PIECE = 65536
ERROR = "<?xml version='1.0'?><Error><Code>{}</Code><Message>{}</Message></Error>"


@dataclass(frozen=True, slots=True)
class Message:
    """A request (`status` is 0) or an answer. `sent` bytes of the body are sent; the length that
    is announced is that of `body`."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    status: int = 0
    sent: int | None = None


@dataclass
class Wire:
    """Does not fail. `requests` are those that came, as (method, path)."""

    server: S3Server
    endpoint: str = ""
    requests: list[tuple[str, str]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def ask(self, request: Message) -> Message | None:
        """The answer; None hangs up without one."""
        return self.pass_on(request)

    def carry(self, size: int) -> None:
        """Called for each piece of a body that comes from the client."""

    def pass_on(self, request: Message) -> Message:
        """The server's own answer."""
        connection = http.client.HTTPConnection(urlsplit(self.server.endpoint).netloc, timeout=60)
        try:
            connection.putrequest(
                request.method, request.path, skip_host=True, skip_accept_encoding=True
            )
            for name, value in request.headers.items():
                connection.putheader(name, value)
            connection.endheaders(request.body)
            answer = connection.getresponse()
            headers = {name: value for name, value in answer.getheaders() if name != "Connection"}
            return replace(request, headers=headers, body=answer.read(), status=answer.status)
        finally:
            connection.close()

    @contextmanager
    def running(self) -> Iterator[Self]:
        listener = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        listener.daemon_threads = True
        thread = threading.Thread(target=listener.serve_forever, args=(0.02,))
        thread.start()
        self.endpoint = f"http://127.0.0.1:{listener.server_port}"
        try:
            yield self
        finally:
            listener.shutdown()
            listener.server_close()
            thread.join()


@dataclass
class WireForSome(Wire):
    """Base of those that fail for the first `times` requests of `method` below `part` of a path."""

    times: int = 1
    method: str = "PUT"
    part: str = "/packs/"
    failed: int = 0

    def is_due(self, request: Message) -> bool:
        with self.lock:
            if request.method != self.method or self.part not in request.path:
                return False
            due = self.failed < self.times
            self.failed += due
            return due


@dataclass
class WireThatSaysNotNow(WireForSome):
    """503 SlowDown, in place of the server."""

    def ask(self, request: Message) -> Message | None:
        if not self.is_due(request):
            return self.pass_on(request)
        body = ERROR.format("SlowDown", "Please reduce your request rate.").encode()
        return replace(request, status=503, headers={}, body=body)


@dataclass
class WireThatRefuses(WireForSome):
    """403 AccessDenied, in place of the server."""

    def ask(self, request: Message) -> Message | None:
        if not self.is_due(request):
            return self.pass_on(request)
        body = ERROR.format("AccessDenied", "Access Denied.").encode()
        return replace(request, status=403, headers={}, body=body)


@dataclass
class WireThatLosesTheAcknowledgement(WireForSome):
    """The server carries out the request, and nobody hears of it."""

    def ask(self, request: Message) -> Message | None:
        answer = self.pass_on(request)
        return None if self.is_due(request) else answer


@dataclass
class WireThatCutsBodies(WireForSome):
    """Answers end in the middle of their body, shorter than they announced."""

    method: str = "GET"

    def ask(self, request: Message) -> Message | None:
        answer = self.pass_on(request)
        return replace(answer, sent=len(answer.body) // 2) if self.is_due(request) else answer


@dataclass
class WireThatFlipsABit(WireForSome):
    """One bit of an answer's body is another."""

    method: str = "GET"

    def ask(self, request: Message) -> Message | None:
        answer = self.pass_on(request)
        if not self.is_due(request):
            return answer
        body = bytearray(answer.body)
        body[len(body) // 2] ^= 0x10
        return replace(answer, body=bytes(body))


@dataclass
class WireThatIsSlow(Wire):
    """What clients send passes at `bytes_per_second`, all connections together."""

    bytes_per_second: float = 1e6
    passed: int = 0
    _free_at: float = 0.0

    def carry(self, size: int) -> None:
        with self.lock:
            self.passed += size
            self._free_at = max(self._free_at, time.monotonic()) + size / self.bytes_per_second
            wait = self._free_at - time.monotonic()
        time.sleep(max(wait, 0.0))


def _handler(wire: Wire) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def _serve(self) -> None:
            body = bytearray()
            left = int(self.headers.get("Content-Length", 0))
            while left:
                piece = self.rfile.read(min(left, PIECE))
                if not piece:
                    self.close_connection = True
                    return
                wire.carry(len(piece))
                body += piece
                left -= len(piece)
            headers = {n: v for n, v in self.headers.items() if n.lower() != "expect"}
            with wire.lock:
                wire.requests.append((self.command, self.path))
            answer = wire.ask(Message(self.command, self.path, headers, bytes(body)))
            if answer is None:
                self.close_connection = True
                return
            self.send_response_only(answer.status)
            length = len(answer.body)
            if self.command == "HEAD":
                length = int(answer.headers.get("Content-Length", 0))
            for name, value in answer.headers.items():
                if name.lower() not in {"content-length", "transfer-encoding"}:
                    self.send_header(name, value)
            self.send_header("Content-Length", str(length))
            self.end_headers()
            self.wfile.write(answer.body[: answer.sent])
            self.wfile.flush()
            self.close_connection = answer.sent is not None

        do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _serve

        def log_message(self, format: str, *words: object) -> None:
            """Say nothing."""

    return Handler
