"""Jupyter Server extension inside a session: tells its supervisor what goes on, and sets the server's
clocks and identity right after a resume. It also spares people JupyterLab's question about news.

Loaded with `--ServerApp.jpserver_extensions="{'spawner.extension': True}"`. Outside a sandbox (no
`/run/hubernate`) it does nothing but answer its one request:

    GET <base_url>hubernate/status
    {"epoch": 3, "resumed_at": 1700000000.0, "notes": ["…"], "gpus": [{…}],
     "filling": {"percent": 63, "trouble": ""}, "suspend": {"can": true, "sentence": "…"}}

`epoch` and `resumed_at` are null in a session that was never resumed; the rest is described in
`supervisor.telling`. The request needs a log-in and does not count as activity. JupyterLab's status
bar (`labextensions/hubernate`) asks it again and again while somebody looks.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jupyter_server.base.handlers import APIHandler
from jupyter_server.utils import url_path_join
from tornado import web
from tornado.ioloop import PeriodicCallback

from spawner.extension_activity import InputWatch, KernelWatch, TerminalWatch
from spawner.extension_clocks import RESUME_FILE, Clocks, CullerGuard, terminal_manager
from spawner.extension_identity import IDENTITY_FILE, IdentityGuard
from spawner.extension_page import offer, quieten
from spawner.extension_state import STATE_FILE, read_state

_log = logging.getLogger(__name__)

RUN_VARIABLE = "HUBERNATE_RUN"
DEFAULT_RUN = "/run/hubernate"
SOCKET_FILE = "inner.sock"
GPUS_FILE = "gpus.json"
PULSE_MILLISECONDS = 2000


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    """Where Jupyter Server finds the extension."""
    return [{"module": "spawner.extension"}]


class StatusHandler(APIHandler):
    """What the session's pages want to know after a resume."""

    _track_activity = False

    def initialize(self, pulse: Pulse) -> None:
        """Called by tornado before each request."""
        self._pulse = pulse

    @web.authenticated
    async def get(self) -> None:
        """Epoch, time and notes of the last resume, and the GPUs of the session."""
        self.finish(json.dumps(self._pulse.status()))


class Pulse:
    """Beats every two seconds: looks, fixes clocks, sends one datagram."""

    def __init__(
        self, serverapp: Any, folder: Path, *, now: Callable[[], float] = time.time
    ) -> None:
        self._server = serverapp
        self._folder = folder
        self._kernels = KernelWatch(serverapp.kernel_manager, now)
        self._terminals = TerminalWatch(lambda: terminal_manager(serverapp))
        self._inputs = InputWatch(now)
        self._clocks = Clocks(
            serverapp, self._kernels, self._inputs, file=folder / RESUME_FILE, now=now
        )
        self._guard = CullerGuard(self._clocks)
        self._identity = IdentityGuard(serverapp, folder / IDENTITY_FILE)
        self._timer = PeriodicCallback(self.beat, PULSE_MILLISECONDS)

    def start(self) -> None:
        """Begin to watch and to beat."""
        self._inputs.watch_kernels(self._server.kernel_manager)
        self._inputs.watch_contents(self._server.contents_manager)
        self._watch_terminals()
        self._guard.guard_server(self._server)
        self._identity.stand()
        if self._folder.is_dir():
            self._timer.start()

    def stop(self) -> None:
        """Beat no more."""
        self._timer.stop()

    def _watch_terminals(self) -> None:
        try:
            from jupyter_server_terminals.handlers import TermSocket
        except ImportError:
            return
        self._inputs.watch_terminals(TermSocket)

    def beat(self) -> None:
        """One look. A failure in it is logged; the next beat comes anyway."""
        self._identity.check()
        self._guard.guard_server(self._server)
        self._clocks.check()
        self._kernels.look()
        send(self._folder / SOCKET_FILE, self.report())

    def report(self) -> dict[str, Any]:
        """What the supervisor is told (see `supervisor.signals.InnerReport`)."""
        return {
            "kernels": self._kernels.describe(),
            "terminals": self._terminals.describe(),
            "last_input": self._inputs.last,
            "connections": self._kernels.connections() + self._terminals.connections(),
        }

    def status(self) -> dict[str, Any]:
        """The answer to GET status."""
        self._clocks.check()
        resume = self._clocks.resume
        return {
            "epoch": resume.epoch,
            "resumed_at": resume.at,
            "notes": list(resume.notes),
            "gpus": _read_gpus(self._folder / GPUS_FILE),
            **read_state(self._folder / STATE_FILE),
        }


def _read_gpus(path: Path) -> list[Any]:
    try:
        return list(json.loads(path.read_bytes())["gpus"])
    except (OSError, ValueError, LookupError, TypeError):
        return []


def send(path: Path, report: dict[str, Any]) -> None:
    """One datagram, never waiting. Without a supervisor to hear it, it is lost: nothing inside
    depends on it, and no socket is kept that a snapshot would have to hold."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        try:
            sock.sendto(json.dumps(report).encode(), str(path))
        except OSError as error:
            _log.debug("the supervisor was not told: %s", error)


def _link_jupyter_server_extension(serverapp: Any) -> None:
    """Called by Jupyter Server before any extension is loaded."""
    offer(serverapp.extension_manager)


def _load_jupyter_server_extension(serverapp: Any) -> None:
    """Called by Jupyter Server once it is set up."""
    pulse = Pulse(serverapp, Path(os.environ.get(RUN_VARIABLE, DEFAULT_RUN)))
    url = url_path_join(serverapp.base_url, "hubernate", "status")
    serverapp.web_app.add_handlers(".*$", [(url, StatusHandler, {"pulse": pulse})])
    quieten(serverapp.web_app.settings)
    pulse.start()
