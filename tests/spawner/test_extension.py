"""The server extension in a real Jupyter Server: what it tells, and clocks after a gap."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from spawner.extension_activity import InputWatch
from spawner.extension_page import HOOK, UNWANTED, quieten
from spawner.local import SINGLEUSER_ARGUMENTS
from spawner.supervisor import inner
from spawner.supervisor.signals import InnerReport, KernelState
from tests.builders.jupyter import TOKEN, Server, page
from tests.builders.supervisor import until


class Session:
    """A server with a supervisor's ear beside it."""

    def __init__(self, folder: Path, sock: socket.socket, process: subprocess.Popen[bytes]) -> None:
        self.folder = folder
        self.process = process
        self.server = Server(0)
        self._socket = sock
        self.last: InnerReport | None = None

    def hear(self) -> InnerReport | None:
        """The newest report, if one came since the last call."""
        newest = None
        while True:
            try:
                datagram = self._socket.recv(inner.LARGEST_DATAGRAM + 1)
            except BlockingIOError:
                return newest
            newest = inner.parse(datagram)
            assert newest is not None, datagram
            self.last = newest

    async def hears(self, condition: Callable[[InnerReport], Any]) -> InnerReport:
        """The first report of which the condition holds."""
        found: InnerReport = await until(
            lambda: report if (report := self.hear()) and condition(report) else None, 20
        )
        return found

    def stop(self) -> None:
        """As a freeze would: no instruction is carried out any more."""
        os.kill(self.process.pid, signal.SIGSTOP)

    def go_on(self, *, announced: bool, epoch: int = 2) -> None:
        """As after a resume. `announced`: with the supervisor's file, which tells it."""
        if announced:
            value = {"epoch": epoch, "at": time.time(), "seconds": None, "notes": ["a file grew"]}
            (self.folder / "new").write_text(json.dumps(value))
            (self.folder / "new").rename(self.folder / "resume.json")
        os.kill(self.process.pid, signal.SIGCONT)


@asynccontextmanager
async def session(tmp_path: Path, *arguments: str) -> AsyncIterator[Session]:
    """A running server whose extension sends to us."""
    folder = tmp_path / "run"
    folder.mkdir()
    sock = inner.bind(folder, os.getuid(), os.getgid())
    runtime, log = tmp_path / "runtime", open(tmp_path / "log", "wb")  # noqa: ASYNC230, SIM115
    argv = [sys.executable, "-m", "jupyter_server", "--ServerApp.port=0", "--allow-root"]
    argv += [f"--IdentityProvider.token={TOKEN}", f"--ServerApp.root_dir={tmp_path}"]
    argv += ["--ServerApp.jpserver_extensions={'spawner.extension': True}", *arguments]
    environment = {
        **os.environ,
        "HUBERNATE_RUN": str(folder),
        "JUPYTER_RUNTIME_DIR": str(runtime),
        "HOME": str(tmp_path),
    }
    process = subprocess.Popen(argv, env=environment, stdout=log, stderr=log)  # noqa: ASYNC220
    made = Session(folder, sock, process)
    try:
        info = await until(lambda: next(iter(runtime.glob("jpserver-*.json")), None), 60)
        port = await until(lambda: json.loads(info.read_text() or "{}").get("port"))
        made.server = Server(port)
        await made.hears(lambda report: True)
        yield made
    finally:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        try:
            await asyncio.to_thread(process.wait, 20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        log.close()
        sock.close()


def state(report: InnerReport) -> KernelState | None:
    """What the only kernel does."""
    return report.kernels[0].state if report.kernels else None


async def test_jupyterlab_does_not_ask_about_news(tmp_path: Path) -> None:
    async with session(tmp_path) as s:
        async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
            page = await client.get(f"{s.server.url}lab?token={TOKEN}", follow_redirects=True)
        told = re.search(r'<script id="jupyter-config-data"[^>]*>(.*?)</script>', page.text, re.S)
        assert told is not None, page.text
        config = json.loads(told[1])
        assert config["appName"] == "JupyterLab"
        assert "@jupyterlab/apputils-extension:announcements" in config["disabledExtensions"]


def test_another_hook_of_the_page_still_counts() -> None:
    settings: dict[str, Any] = {HOOK: lambda _, page: page | {"disabledExtensions": ["x"], "y": 1}}
    quieten(settings)
    assert settings[HOOK](None, {}) == {"disabledExtensions": ["x", *UNWANTED], "y": 1}
    assert settings[HOOK](None, {})["disabledExtensions"].count(UNWANTED[0]) == 1


async def test_kernels_input_and_terminals_are_told(tmp_path: Path) -> None:
    async with session(tmp_path) as s:
        quiet = await s.hears(lambda r: r.kernels == ())
        assert quiet.connections == 0
        assert quiet.last_input is not None

        kernel = await s.server.start_kernel()
        await s.server.execute(kernel, "import time; time.sleep(6)", wait=False)
        busy = await s.hears(lambda r: state(r) is KernelState.BUSY)
        assert busy.kernels is not None and busy.kernels[0].id == kernel
        assert busy.last_input is not None and busy.last_input > quiet.last_input
        idle = await s.hears(lambda r: state(r) is KernelState.IDLE)
        assert idle.kernels is not None
        assert (idle.kernels[0].since or 0) > (busy.kernels[0].since or 0)
        # A cell that ran on by itself is not a person's input.
        assert idle.last_input == busy.last_input

        await s.server.call("PUT", "api/contents/note.txt", json=text("one"))
        typed = await s.hears(lambda r: (r.last_input or 0) > (idle.last_input or 0))

        name = (await s.server.call("POST", "api/terminals"))["name"]
        shell = await s.hears(lambda r: r.terminals and r.terminals[0].foreground is False)
        assert shell.terminals is not None and shell.terminals[0].name == name
        assert shell.last_input == typed.last_input
        await type_into_terminal(s.server, name, "sleep 1000\r")
        running = await s.hears(lambda r: r.terminals and r.terminals[0].foreground is True)
        assert (running.last_input or 0) > (typed.last_input or 0)


async def test_terminals_find_what_the_session_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log-in shell would begin with the PATH of the machine's /etc/profile."""
    mine = tmp_path / "mine"
    mine.mkdir()
    monkeypatch.setenv("PATH", f"{mine}:{os.environ['PATH']}")
    shells = [word for word in SINGLEUSER_ARGUMENTS if "terminado" in word]
    async with session(tmp_path, *shells) as s:
        name = (await s.server.call("POST", "api/terminals"))["name"]
        keys = (
            f"sleep 0; echo $PATH > {tmp_path}/told.new; mv {tmp_path}/told.new {tmp_path}/told\r"
        )
        await type_into_terminal(s.server, name, keys)
        await until((tmp_path / "told").exists, 20)
        assert (tmp_path / "told").read_text().startswith(f"{mine}:")


def text(content: str) -> dict[str, str]:
    """A text file to save."""
    return {"type": "file", "format": "text", "content": content}


async def type_into_terminal(server: Server, name: str, keys: str) -> None:
    """Keys, as the terminal's page sends them."""
    url = server.url.replace("http", "ws", 1) + f"terminals/websocket/{name}?token={TOKEN}"
    async with page(url) as terminal, asyncio.timeout(20):
        await terminal.write_message(json.dumps(["stdin", keys]))
        while True:
            said = json.loads(await terminal.read_message() or "[]")
            if said[0] == "stdout" and "sleep" in said[1]:
                break


CULLING = (
    "--MappingKernelManager.cull_idle_timeout=4",
    "--MappingKernelManager.cull_interval=1",
    "--TerminalManager.cull_inactive_timeout=4",
    "--TerminalManager.cull_interval=1",
)


async def frozen_for_longer_than_the_cullers_allow(s: Session) -> None:
    """Real seconds pass: nothing but time can show what time does."""
    s.stop()
    await asyncio.sleep(6)


async def test_a_resume_is_not_idleness_to_the_cullers(tmp_path: Path) -> None:
    async with session(tmp_path, *CULLING) as s:
        kernel = await s.server.start_kernel()
        await s.server.call("POST", "api/terminals")
        before = await s.hears(lambda r: r.kernels and r.terminals)
        await frozen_for_longer_than_the_cullers_allow(s)
        s.go_on(announced=True)
        resumed = await s.hears(lambda r: (r.last_input or 0) > (before.last_input or 0) + 5)
        assert resumed.kernels is not None and [k.id for k in resumed.kernels] == [kernel]
        assert resumed.terminals
        assert (resumed.kernels[0].since or 0) > time.time() - 4
        # From then on they count again.
        await s.hears(lambda r: r.kernels == () and r.terminals == ())


async def test_without_a_resume_the_same_gap_ends_the_kernel(tmp_path: Path) -> None:
    """The cullers of the test above do their work: it proves something."""
    async with session(tmp_path, *CULLING) as s:
        await s.server.start_kernel()
        await s.hears(lambda r: r.kernels)
        await frozen_for_longer_than_the_cullers_allow(s)
        s.go_on(announced=False)
        await s.hears(lambda r: r.kernels == ())


async def test_the_status_is_for_those_logged_in_and_no_activity(tmp_path: Path) -> None:
    async with session(tmp_path) as s:
        url = s.server.url + "hubernate/status"
        async with httpx.AsyncClient(trust_env=False) as browser:
            assert (await browser.get(url)).status_code == 403
        fresh = await s.server.call("GET", "hubernate/status")
        unknown = {"filling": None, "suspend": {"can": None, "sentence": ""}}
        assert fresh == {"epoch": None, "resumed_at": None, "notes": [], "gpus": [], **unknown}
        # Asking for the status of the server counts neither.
        before = (await s.server.call("GET", "api/status?no_track_activity=1"))["last_activity"]
        (s.folder / "gpus.json").write_text(json.dumps({"gpus": [{"index": 0}], "epoch": 7}))
        s.go_on(announced=False)
        told = await s.server.call("GET", "hubernate/status")
        assert told["gpus"] == [{"index": 0}]
        after = (await s.server.call("GET", "api/status?no_track_activity=1"))["last_activity"]
        assert after == before

        s.go_on(announced=True, epoch=7)
        told = await s.server.call("GET", "hubernate/status")
        assert (told["epoch"], told["notes"]) == (7, ["a file grew"])


async def test_a_session_without_supervisor_works_as_ever(tmp_path: Path) -> None:
    async with session(tmp_path) as s:
        (s.folder / "inner.sock").unlink()
        kernel = await s.server.start_kernel()
        assert (await s.server.execute(kernel, "print(1)")).strip() == "1"


class Ticks:
    """A clock that is read once per second."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def notebook(*sources: str, output: str = "") -> dict[str, Any]:
    """A notebook as it is saved."""
    cells = [{"cell_type": "code", "source": s, "outputs": [output]} for s in sources]
    return {"type": "notebook", "content": {"cells": cells}}


@pytest.mark.parametrize(
    ("saves", "inputs"),
    [
        ([notebook("a"), notebook("a", output="printed")], 1),
        ([notebook("a"), notebook("a", "b")], 2),
        ([notebook("a"), notebook("b")], 2),
        ([{"type": "file"}, {"type": "file"}], 2),
        ([{"type": "directory"}], 0),
        ([{"type": "notebook"}], 1),
    ],
    ids=["output only", "a new cell", "an edit", "a file twice", "a folder", "no content"],
)
def test_saves_count_when_a_person_edited(saves: list[dict[str, Any]], inputs: int) -> None:
    watch = InputWatch(Ticks())
    times = {watch.last}
    for model in saves:
        watch.saving(model=model, path="n.ipynb")
        times.add(watch.last)
    assert len(times) - 1 == inputs
