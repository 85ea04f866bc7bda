"""The real scheduler service over HTTP, a stand-in for the Hub's user API, and the CLI beside it."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
import uvicorn
from typer.testing import CliRunner, Result

from hub_config.cli import app
from hub_config.paths import StateFolder
from scheduler_bridge.agent.inventory import virtual_gpus
from scheduler_bridge.api.auth import Authenticator, HubUsers
from scheduler_bridge.api.service import create_service
from scheduler_bridge.client import SchedulerClient
from scheduler_bridge.engine.books import Books
from scheduler_bridge.engine.scheduler import Scheduler
from scheduler_bridge.engine.settings import SystemClock
from scheduler_bridge.model.phases import Kind, Phase
from scheduler_bridge.model.workload import (
    Grant,
    Node,
    Report,
    SnapshotRef,
    Workload,
    WorkloadSpec,
)
from scheduler_bridge.store.opening import open_memory

ADMIN_TOKEN = "admin-token-of-the-tests"
RECLAIMER_TOKEN = "reclaimer-token-of-the-tests"
ADA_TOKEN = "token-of-ada-in-a-session"
Answer = TypeVar("Answer")


async def _hub(scope: Any, receive: Any, send: Any) -> None:
    """Answers `GET /user` as the Hub does, for one token."""
    headers = {name.decode(): value.decode() for name, value in scope["headers"]}
    known = headers.get("authorization") == f"token {ADA_TOKEN}"
    scopes = ["access:services!service=hubernate"]
    body = {"kind": "user", "name": "ada", "groups": [], "admin": False, "scopes": scopes}
    await send({"type": "http.response.start", "status": 200 if known else 403, "headers": []})
    await send({"type": "http.response.body", "body": json.dumps(body).encode()})


@dataclass
class Service:
    """A scheduler that answers at `url`; its engine lives in the server's thread."""

    url: str
    port: int
    grants: dict[str, Grant] = field(default_factory=dict)

    def do(self, action: Callable[[SchedulerClient], Awaitable[Answer]]) -> Answer:
        """Talk to it as the administrator, as other programs would."""

        async def talk() -> Answer:
            client = SchedulerClient(self.url, ADMIN_TOKEN)
            try:
                return await action(client)
            finally:
                await client.aclose()

        return asyncio.run(talk())

    def session(self, user: str = "ada", server: str = "", **changes: Any) -> Workload:
        """A session that waits for its supervisor."""
        spec = WorkloadSpec(Kind.SESSION, user, user, server=server, **({"gpus": 1} | changes))
        return self.do(lambda s: s.submit(spec, key=f"session:hub/{user}/{server}"))

    def job(self, user: str = "ada", name: str = "train", **changes: Any) -> Workload:
        """A job, placed at once if there is room."""
        spec = WorkloadSpec(Kind.JOB, name, user, command=("true",), **({"gpus": 1} | changes))
        key = f"job:{user}/{name}/{time.monotonic_ns()}"
        return self.do(lambda s: s.submit(spec, key=key))

    def run(self, workload: Workload, **more: Any) -> Workload:
        """Play its supervisor up to the running phase."""
        self.grants[workload.id] = self.do(lambda s: s.take(workload.id))
        if workload.snapshot:
            self.move(workload, Phase.FILLING)
        return self.move(workload, Phase.RUNNING, **more)

    def move(self, workload: Workload, target: Phase, **more: Any) -> Workload:
        grant = self.grants[workload.id]
        return self.do(
            lambda s: s.move(
                grant.lease.id, grant.credential, target, cause=f"now {target}", **more
            )
        )

    def report(self, workload: Workload, signals: dict[str, Any]) -> None:
        grant = self.grants[workload.id]
        report = Report(grant.lease.epoch, Phase.RUNNING, signals)
        self.do(lambda s: s.heartbeat(grant.lease.id, grant.credential, report))

    def freeze(self, workload: Workload) -> Workload:
        """Carry out a suspend."""
        epoch = self.grants[workload.id].lease.epoch
        self.move(workload, Phase.SUSPENDING)
        ref = SnapshotRef(f"manifests/ada/x/{epoch}-1", epoch, 1, created_at=time.time())
        return self.move(workload, Phase.SUSPENDED, snapshot=ref)

    def next_state(self, seen: Workload, *, seconds: float = 5.0) -> Workload:
        """The workload as soon as it differs from what was seen."""
        return self.do(lambda s: s.wait(seen.id, version=seen.version, timeout=seconds))

    def when(
        self, workload: Workload, wanted: Callable[[Workload], bool], then: Callable[[], object]
    ) -> threading.Thread:
        """Do something in the background as soon as the workload is as wanted."""

        def wait() -> None:
            seen = self.do(lambda s: s.get(workload.id))
            end = time.monotonic() + 30
            while not wanted(seen) and time.monotonic() < end:
                seen = self.next_state(seen)
            if wanted(seen):
                then()

        thread = threading.Thread(target=wait)
        thread.start()
        return thread


@contextmanager
def running_service(gpus: int = 2, nodes: tuple[Node, ...] = ()) -> Iterator[Service]:
    """A real server on a port of the system's choice."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        thread, server = _serve(listening, port, gpus, nodes)
        try:
            yield Service(f"http://127.0.0.1:{port}/services/hubernate", port)
        finally:
            server.should_exit = True
            thread.join(timeout=20)


class _Server(uvicorn.Server):
    """Tells when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listens = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listens.set()


def _serve(
    listening: socket.socket, port: int, gpus: int, nodes: tuple[Node, ...]
) -> tuple[threading.Thread, _Server]:
    node = Node("local", virtual_gpus(gpus, Path("/dev"), node="local", mark="test"))
    engine = Scheduler(Books(open_memory(), SystemClock(), nodes or (node,)))
    users = HubUsers(f"http://127.0.0.1:{port}/fake-hub")
    tokens = {"admin": ADMIN_TOKEN, "reclaimer": RECLAIMER_TOKEN}
    service = create_service(engine, Authenticator(tokens, users))

    async def both(scope: Any, receive: Any, send: Any) -> None:
        hub = scope["type"] == "http" and scope["path"].startswith("/fake-hub")
        await (_hub if hub else service)(scope, receive, send)

    config = uvicorn.Config(both, log_level="warning", lifespan="off", timeout_graceful_shutdown=1)
    server = _Server(config)

    async def serve() -> None:
        await server.serve(sockets=[listening])
        await users.aclose()
        engine.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert server.listens.wait(20)
    return thread, server


@dataclass
class Cli:
    """Runs `hubernate`, as the administrator of a state folder or in a session."""

    service: Service
    state: StateFolder
    monkeypatch: pytest.MonkeyPatch
    runner: CliRunner = field(default_factory=CliRunner)

    def as_root(self) -> None:
        self.monkeypatch.setenv("HUBERNATE_STATE", str(self.state.root))
        for name in ("HUBERNATE_URL", "HUBERNATE_TOKEN", "JUPYTERHUB_API_TOKEN", "SUDO_USER"):
            self.monkeypatch.delenv(name, raising=False)

    def in_a_session(self, token: str = ADA_TOKEN) -> None:
        self.monkeypatch.setenv("HUBERNATE_URL", self.service.url + "/")
        self.monkeypatch.setenv("JUPYTERHUB_API_TOKEN", token)
        self.monkeypatch.setenv("JUPYTERHUB_USER", "ada")

    def __call__(self, *arguments: str) -> Result:
        return self.runner.invoke(app, list(arguments))

    def ok(self, *arguments: str) -> str:
        """Standard output of a command that succeeds."""
        result = self(*arguments)
        assert result.exit_code == 0, result.output
        return result.stdout

    def json(self, *arguments: str) -> Any:
        end = arguments.index("--") if "--" in arguments else len(arguments)
        return json.loads(self.ok(*arguments[:end], "--json", *arguments[end:]))

    def fails(self, *arguments: str, code: int = 1) -> str:
        """The one line on standard error of a command that is refused."""
        result = self(*arguments)
        assert result.exit_code == code, result.output
        lines = result.stderr.strip().splitlines()
        assert lines and lines[-1].startswith("hubernate: "), result.output
        return lines[-1]


def state_at(root: Path, port: int) -> StateFolder:
    """A state folder as `hubernate up` leaves it, whose scheduler answers on `port`."""
    state = StateFolder(root, root)
    for folder in (state.secrets, state.config, state.run):
        folder.mkdir(parents=True)
    state.ports_file.write_text(json.dumps({"public": port - 3}))
    (state.secrets / "service-tokens.json").write_text(json.dumps({"admin": ADMIN_TOKEN}))
    return state
