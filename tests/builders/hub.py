"""A real Hub with its real proxy, as child processes on free ports, for tests.

    async with running_hub(tmp_path, config) as hub:
        await hub.api("POST", "/users/alice")

`config` is Python text for `jupyterhub_config.py`; it comes after the ports and the proxy, so it may
override them. Everything is ended by PID at the end, also when the test fails.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import psutil

from hub_config.paths import DEFAULT_STATE, StateFolder

CHECKOUT = Path(__file__).parents[2]
READY_SECONDS = 60.0
END_SECONDS = 15.0

_CONFIG = """\
c = get_config()
c.JupyterHub.bind_url = "http://127.0.0.1:{public}"
c.JupyterHub.hub_bind_url = "http://127.0.0.1:{hub_api}"
c.JupyterHub.db_url = "sqlite:///{folder}/hub.sqlite"
c.JupyterHub.cookie_secret_file = "{folder}/cookie-secret"
c.ConfigurableHTTPProxy.command = {proxy!r}
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{proxy_api}"
c.ConfigurableHTTPProxy.auth_token = "{proxy_token}"
c.ConfigurableHTTPProxy.pid_file = "{folder}/proxy.pid"
c.JupyterHub.authenticator_class = "shared-password"
c.SharedPasswordAuthenticator.user_password = "{password}"
c.SharedPasswordAuthenticator.allow_all = True
c.JupyterHub.services = [{{"name": "tester", "api_token": "{token}", "admin": True}}]
c.JupyterHub.load_roles = [{{
    "name": "tester",
    "scopes": ["admin:users", "admin:servers", "tokens", "access:servers", "list:services",
               "read:roles", "custom:hubernate:test"],
    "services": ["tester"],
}}]
c.JupyterHub.custom_scopes = {{"custom:hubernate:test": {{"description": "a scope of tests"}}}}
"""


def downloads() -> StateFolder:
    """Where Node and the proxy were set up on this machine."""
    root = Path(os.environ.get("HUBERNATE_DOWNLOADS") or DEFAULT_STATE)
    return StateFolder(root, root)


def free_ports(count: int) -> list[int]:
    """Ports that nobody listened on a moment ago."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


async def until(condition: Any, *, seconds: float = 20.0, what: str = "") -> Any:
    """The first true result of `condition` (a function or coroutine function)."""
    deadline = asyncio.get_running_loop().time() + seconds
    while True:
        value = condition()
        if asyncio.iscoroutine(value):
            value = await value
        if value:
            return value
        if asyncio.get_running_loop().time() > deadline:
            raise AssertionError(f"not within {seconds} s: {what or condition}")
        await asyncio.sleep(0.05)


@dataclass
class Browser:
    """A logged-in user's cookies, without a browser."""

    client: httpx.AsyncClient
    hub: RunningHub
    user: str

    @property
    def xsrf(self) -> str:
        cookies = [
            c.value for c in self.client.cookies.jar if c.name == "_xsrf" and "/hub" in c.path
        ]
        return cookies[-1] or "" if cookies else ""

    async def get(self, path: str, **options: Any) -> httpx.Response:
        return await self.client.get(self.hub.url + path, **options)

    async def post(self, path: str, *, xsrf: bool = True, **options: Any) -> httpx.Response:
        """With the XSRF token in the URL, as the Hub's own pages send it."""
        query = f"{'&' if '?' in path else '?'}_xsrf={self.xsrf}" if xsrf else ""
        return await self.client.post(self.hub.url + path + query, **options)


@dataclass
class RunningHub:
    """One Hub. `kill` is SIGKILL, as a crash would be; `start` brings it back on the same ports."""

    folder: Path
    config_file: Path
    public: int
    hub_api: int
    token: str
    password: str
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    log_file: Path = Path()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.public}"

    async def start(self) -> None:
        """Start the Hub and wait until it answers through its proxy."""
        self.log_file = self.folder / "hub.log"
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(  # noqa: ASYNC220
                [sys.executable, "-m", "jupyterhub", "-f", str(self.config_file)],
                cwd=self.folder,
                env=os.environ | {"PYTHONPATH": str(CHECKOUT)} | self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        await until(self._answers, seconds=READY_SECONDS, what=f"a Hub, see {self.log_file}")

    async def _answers(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError(f"the Hub ended:\n{self.log_file.read_text()[-3000:]}")
        try:
            async with httpx.AsyncClient(timeout=2) as client:
                return (await client.get(f"{self.url}/hub/health")).status_code == 200
        except httpx.HTTPError:
            return False

    def kill(self) -> None:
        """As a crash: no clean-up. The proxy goes on."""
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait(timeout=10)

    def end(self) -> None:
        """End the Hub and its proxy by PID."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=END_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(timeout=5)
        self._end_proxy()

    def _end_proxy(self) -> None:
        try:
            proxy = psutil.Process(int((self.folder / "proxy.pid").read_text()))
            if any("configurable-http-proxy" in part for part in proxy.cmdline()):
                proxy.kill()
        except (FileNotFoundError, ValueError, psutil.Error):
            return

    async def api(
        self, method: str, path: str, *, token: str = "", json: Any = None, timeout: float = 60.0
    ) -> httpx.Response:
        """One call of the Hub's REST API, as the tester or with another token."""
        async with httpx.AsyncClient(timeout=timeout) as client:
            return await client.request(
                method,
                f"{self.url}/hub/api{path}",
                json=json,
                headers={"Authorization": f"token {token or self.token}"},
            )

    async def server(self, user: str, name: str = "") -> dict[str, Any]:
        """The Hub's model of one server; empty if there is none."""
        answer = await self.api("GET", f"/users/{user}?include_stopped_servers")
        servers: dict[str, dict[str, Any]] = answer.json().get("servers", {})
        return servers.get(name, {})

    async def is_ready(self, user: str, name: str = "") -> bool:
        return bool((await self.server(user, name)).get("ready"))

    async def is_stopped(self, user: str, name: str = "") -> bool:
        model = await self.server(user, name)
        return not model or (not model.get("ready") and not model.get("pending"))

    async def remove(self, user: str) -> None:
        """Remove a user with every server. The Hub removes nobody whose named servers run."""
        for server in (await self.api("GET", f"/users/{user}")).json().get("servers", {}):
            path = f"/users/{user}/servers/{server}" if server else f"/users/{user}/server"
            await self.api("DELETE", path)
            await until(lambda name=server: self.is_stopped(user, name), what=f"{user} stopped")

        async def is_removed() -> bool:
            return (await self.api("DELETE", f"/users/{user}")).status_code in (204, 404)

        await until(is_removed, what=f"{user} removed")

    @asynccontextmanager
    async def browser(self, user: str) -> AsyncIterator[Browser]:
        """Log in through the form, as a person does."""
        async with httpx.AsyncClient(follow_redirects=True, timeout=60) as client:
            browser = Browser(client, self, user)
            page = await browser.get("/hub/login")
            assert page.status_code == 200, page.text
            answer = await browser.post(
                "/hub/login?next=%2Fhub%2Fhome",
                data={"username": user, "password": self.password, "_xsrf": browser.xsrf},
            )
            assert answer.status_code == 200 and "/hub/home" in str(answer.url), answer.url
            yield browser


def query_of(response: httpx.Response) -> dict[str, list[str]]:
    """The query of the page where redirects ended."""
    return parse_qs(urlsplit(str(response.url)).query)


@asynccontextmanager
async def running_hub(
    folder: Path, config: str, *, environment: dict[str, str] | None = None
) -> AsyncIterator[RunningHub]:
    """A Hub with this configuration, ended at the end."""
    hub = prepare_hub(folder, config, environment=environment)
    try:
        await hub.start()
        yield hub
    finally:
        hub.end()


def prepare_hub(
    folder: Path, config: str, *, environment: dict[str, str] | None = None
) -> RunningHub:
    """Write the configuration; the caller starts and ends."""
    folder.mkdir(parents=True, exist_ok=True)
    public, proxy_api, hub_api = free_ports(3)
    token, password = secrets.token_hex(16), secrets.token_hex(8)
    text = _CONFIG.format(
        public=public,
        proxy_api=proxy_api,
        hub_api=hub_api,
        folder=folder,
        proxy=list(downloads().proxy_command()),
        proxy_token=secrets.token_hex(16),
        password=password,
        token=token,
    )
    config_file = folder / "jupyterhub_config.py"
    config_file.write_text(text + config)
    (folder / "cookie-secret").write_text(secrets.token_hex(32))
    (folder / "cookie-secret").chmod(0o600)
    return RunningHub(
        folder, config_file, public, hub_api, token, password, environment=environment or {}
    )
