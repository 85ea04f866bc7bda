"""A real single-user server that is told to be another one: its URL, token, client and cookies."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import pytest

from hub_config.demo.browserless import Researcher
from spawner.extension_identity import NotTakenOver, read_identity
from tests.builders.hub import free_ports
from tests.builders.supervisor import until
from tests.fakes.token_hub import TokenHub, token_hub

pytestmark = pytest.mark.timeout(120)


def variables(hub: TokenHub, server: str, token: str) -> dict[str, str]:
    """What the Hub gives to a server of alice's."""
    prefix = f"/user/alice/{server}/" if server else "/user/alice/"
    scopes = [f"access:servers!server=alice/{server}", "access:servers!user=alice"]
    return {
        "JUPYTERHUB_API_TOKEN": token,
        "JUPYTERHUB_API_URL": hub.url,
        "JUPYTERHUB_ACTIVITY_URL": f"{hub.url}/users/alice/activity",
        "JUPYTERHUB_ACTIVITY_INTERVAL": "1",
        "JUPYTERHUB_BASE_URL": "/",
        "JUPYTERHUB_CLIENT_ID": f"jupyterhub-user-alice-{server}",
        "JUPYTERHUB_OAUTH_CALLBACK_URL": f"{prefix}oauth_callback",
        "JUPYTERHUB_OAUTH_ACCESS_SCOPES": json.dumps(scopes),
        "JUPYTERHUB_OAUTH_SCOPES": json.dumps(scopes),
        "JUPYTERHUB_SERVER_NAME": server,
        "JUPYTERHUB_SERVICE_PREFIX": prefix,
        "JUPYTERHUB_USER": "alice",
    }


@dataclass
class Box:
    """The server with the folder that its supervisor writes to."""

    port: int
    run: Path
    log: Path

    def be(self, environment: dict[str, str]) -> None:
        """Tell it who it is now, as a supervisor does."""
        new = self.run / "identity.new"
        new.write_text(json.dumps({"environment": environment}))
        new.rename(self.run / "identity.json")

    async def get(self, path: str, token: str = "", **more: str) -> httpx.Response:
        headers = {"Authorization": f"token {token}"} if token else {}
        async with httpx.AsyncClient(trust_env=False, timeout=20) as client:
            return await client.get(f"http://127.0.0.1:{self.port}{path}", headers=headers | more)

    def as_user(self, token: str) -> Researcher:
        """To speak to kernels."""
        url = f"http://127.0.0.1:{self.port}"
        return Researcher(url, "alice", token, httpx.AsyncClient(trust_env=False, timeout=20))


@asynccontextmanager
async def server(tmp_path: Path, environment: dict[str, str]) -> AsyncIterator[Box]:
    (port,) = free_ports(1)
    with TemporaryDirectory(prefix="run-") as short:  # sockets' names have at most 107 bytes
        async with _server(tmp_path, environment, Path(short), port) as box:
            yield box


@asynccontextmanager
async def _server(
    tmp_path: Path, environment: dict[str, str], run: Path, port: int
) -> AsyncIterator[Box]:
    log = tmp_path / "log"
    inner = {
        "HUBERNATE_RUN": str(run),
        "HOME": str(tmp_path),
        "JUPYTER_RUNTIME_DIR": str(run / "jupyter"),
        "JUPYTERHUB_SERVICE_URL": f"http://127.0.0.1:{port}",
    }
    argv = [sys.executable, "-m", "jupyterhub.singleuser", "--allow-root"]
    argv += ["--ServerApp.jpserver_extensions={'spawner.extension': True}"]
    argv += ["--KernelManager.transport=ipc", f"--ServerApp.root_dir={tmp_path}"]
    with open(log, "wb") as output:  # noqa: ASYNC230
        process = subprocess.Popen(  # noqa: ASYNC220
            argv, env=os.environ | inner | environment, stdout=output, stderr=output
        )
    box = Box(port, run, log)

    async def answers() -> bool:
        assert process.poll() is None, log.read_text()[-3000:]
        try:
            prefix = environment["JUPYTERHUB_SERVICE_PREFIX"]
            return (await box.get(f"{prefix}api")).status_code == 200
        except httpx.HTTPError:
            return False

    try:
        async with asyncio.timeout(60):
            while not await answers():  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        yield box
    finally:
        process.terminate()
        try:
            await asyncio.to_thread(process.wait, 20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def test_it_is_the_fork_from_the_first_request_on(tmp_path: Path) -> None:
    with token_hub() as hub:
        hub.servers = {"old": "", "new": "second", "visitor": ""}
        async with server(tmp_path, variables(hub, "", "old")) as box:
            user = box.as_user("old")
            kernel_id = await user.new_kernel()
            async with user.kernel(kernel_id) as kernel:
                await kernel.run("x = 41")
            assert (await box.get("/user/alice/api/status", "visitor")).status_code == 200
            await user.http.aclose()

            box.be(variables(hub, "second", "new"))
            # the very next request: nothing answers any more as what it was
            assert (await box.get("/user/alice/api")).status_code == 404
            assert (await box.get("/user/alice/api/status", "old")).status_code == 404
            # of another server of the same user, and remembered as welcome from a moment ago
            for stranger in ("old", "visitor"):
                answer = await box.get("/user/alice/second/api/status", stranger)
                assert answer.status_code == 403

            fork = box.as_user("new")
            async with fork.kernel(kernel_id, "second") as kernel:
                assert await kernel.run("print(x + 1)") == "42"
            other = await fork.new_kernel("second")
            async with fork.kernel(other, "second") as kernel:
                names = "import os; print(os.environ['JUPYTERHUB_SERVICE_PREFIX'])"
                assert await kernel.run(names) == "/user/alice/second/"
                token = await kernel.run("print(os.environ['JUPYTERHUB_API_TOKEN'])")
                assert token == "new"
            await fork.http.aclose()


async def test_a_browser_is_led_to_the_forks_own_client_and_pages(tmp_path: Path) -> None:
    with token_hub() as hub:
        hub.servers = {"old": "", "new": "second"}
        async with server(tmp_path, variables(hub, "", "old")) as box:
            page = await box.get("/user/alice/lab")
            assert "jupyterhub-user-alice-&" in page.headers["location"]
            box.be(variables(hub, "second", "new"))

            page = await box.get("/user/alice/second/lab")
            assert page.status_code == 302
            location = page.headers["location"]
            assert "client_id=jupyterhub-user-alice-second&" in location
            assert "user%2Falice%2Fsecond%2Foauth_callback" in location
            cookie = page.headers["set-cookie"]
            assert cookie.startswith("jupyterhub-user-alice-second-oauth-state")
            assert re.search(r"Path=/user/alice/second/(;|$)", cookie)

            page = await box.get("/user/alice/second/lab", "new")
            assert page.status_code == 200
            config = json.loads(
                re.search(r'id="jupyter-config-data"[^>]*>(.*?)</script>', page.text, re.S)[1]  # type: ignore[index]
            )
            assert config["baseUrl"] == "/user/alice/second/"
            assert config["hubServerName"] == "second"
            urls = [v for k, v in config.items() if k.endswith("Url") and isinstance(v, str)]
            of_alice = [url for url in urls if "/user/" in url]
            assert of_alice and all(url.startswith("/user/alice/second/") for url in of_alice)
            script = re.search(r'src="(/user/[^"]+\.js[^"]*)"', page.text)
            assert script is not None
            assert (await box.get(script[1], "new")).status_code == 200
            home = await box.get("/user/alice/second/", "new")
            assert home.headers["location"].startswith("/user/alice/second/")
            told = json.loads(next((box.run / "jupyter").glob("jpserver-*.json")).read_text())
            assert told["base_url"] == "/user/alice/second/"


async def test_the_hub_hears_of_the_fork_only_as_the_fork(tmp_path: Path) -> None:
    with token_hub() as hub:
        hub.servers = {"old": "", "new": "second"}
        async with server(tmp_path, variables(hub, "", "old")) as box:
            await until(lambda: ("", "old") in hub.told, 20)
            box.be(variables(hub, "second", "new"))
            assert (await box.get("/user/alice/second/api")).status_code == 200
            hub.told.clear()
            await box.get("/user/alice/second/api/contents", "new")
            await until(lambda: hub.told, 20)
            assert set(hub.told) == {("second", "new")}


async def test_a_plain_resume_only_changes_the_token(tmp_path: Path) -> None:
    with token_hub() as hub:
        hub.servers = {"first": "", "visitor": ""}
        async with server(tmp_path, variables(hub, "", "first")) as box:
            page = await box.get("/user/alice/lab")
            cookie = page.headers["set-cookie"].partition(";")[0]
            hub.servers = {"rotated": "", "visitor": ""}
            box.be(variables(hub, "", "rotated"))
            assert (await box.get("/user/alice/api/status", "visitor")).status_code == 200
            assert (await box.get("/user/alice/api/status", "first")).status_code == 403
            # a browser that was logged in, or just did so, goes on
            again = await box.get("/user/alice/lab", Cookie=cookie)
            assert "-oauth-state-" in again.headers["set-cookie"].partition("=")[0]
            await until(lambda: ("", "rotated") in hub.told, 20)


async def test_what_cannot_be_taken_over_is_answered_to_nobody(tmp_path: Path) -> None:
    with token_hub() as hub:
        hub.servers = {"old": "", "new": "second"}
        async with server(tmp_path, variables(hub, "", "old")) as box:
            (box.run / "identity.json").write_text("{")
            assert (await box.get("/user/alice/api")).status_code == 503
            box.be(variables(hub, "", "old"))
            assert (await box.get("/user/alice/api")).status_code == 200


def test_only_variables_that_say_who_a_server_is_are_read(tmp_path: Path) -> None:
    file = tmp_path / "identity.json"
    given = {"JUPYTERHUB_USER": "alice", "LD_PRELOAD": "/evil.so", "HUBERNATE_WORKLOAD": "s-1"}
    file.write_text(json.dumps({"environment": given}))
    assert read_identity(file) == {"JUPYTERHUB_USER": "alice", "HUBERNATE_WORKLOAD": "s-1"}
    for wrong in ("", "[]", '{"environment": 3}', '{"environment": ["a"]}'):
        file.write_text(wrong)
        with pytest.raises(NotTakenOver):
            read_identity(file)
