"""A Hub of which a single-user server sees only what it asks: who somebody is, by token."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from jupyterhub import __version__


@dataclass
class TokenHub:
    """`servers` says for each token to which server of its owner it gives access. `told` is every
    report of activity: whose, and with which token."""

    port: int = 0
    servers: dict[str, str] = field(default_factory=dict)
    told: list[tuple[str, str]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hub/api"

    def user(self, token: str) -> dict[str, object] | None:
        """The model that belongs to a token."""
        if token not in self.servers:
            return None
        scope = f"access:servers!server=alice/{self.servers[token]}"
        return {"name": "alice", "kind": "user", "admin": False, "groups": [], "scopes": [scope]}


@contextmanager
def token_hub() -> Iterator[TokenHub]:
    """Answers on a loopback port until the end."""
    hub = TokenHub()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

        @property
        def token(self) -> str:
            return self.headers.get("Authorization", "").partition(" ")[2]

        def answer(self, status: int, value: object) -> None:
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("X-JupyterHub-Version", __version__)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            if not self.path.startswith("/hub/api/user"):
                return self.answer(200, {"version": __version__})
            model = hub.user(self.token)
            return self.answer(200 if model else 403, model or {"message": "unknown"})

        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length", "0"))
            names = json.loads(self.rfile.read(length))["servers"]
            hub.told += [(name, self.token) for name in names]
            self.answer(200, {})

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
