"""The filler as a program: it is told over its socket what to do, and does it to the end.

Program `python -m snapshot.filling` with a socket as standard input. A supervisor that waits with
everything imported keeps a fork of itself for this (`Spare`), because the imports take longer than
a resume should.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import signal
import socket
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from snapshot.errors import SnapshotError
from snapshot.filling import lazy, marker, wire
from snapshot.filling.filler import Filler, FillOrder, Held, Links
from snapshot.filling.journal import Journal
from snapshot.model import StoreSettings
from snapshot.repository import Repository, open_repository

LOG_FILE = "filler.log"
SWITCH_SECONDS = 0.0005

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Beginning:
    """The first message: which snapshot, and the folder of the sandbox."""

    settings: StoreSettings
    manifest: str
    directory: str

    def to_message(self) -> dict[str, Any]:
        return {"is": "begin", **asdict(self)}


@dataclass(frozen=True, slots=True)
class Ready:
    """A repository that was opened before it was needed, and the settings that it was opened for."""

    settings: StoreSettings
    repository: Repository


def repository_of(settings: StoreSettings, ready: Ready | None = None) -> Repository:
    """What reads are done from. Nothing is asked of the store yet. Raises `StoreDeniedError`."""
    if ready is not None and ready.settings == settings:
        return ready.repository
    return open_repository(settings, ask=False)


def main() -> None:
    """Entry point."""
    try:
        serve(socket.socket(fileno=os.dup(0)))
    finally:
        os._exit(0)  # threads that wait for the store must not keep us


def serve(sock: socket.socket, ready: Ready | None = None) -> None:
    """Be the filler that `sock` asks for. Returns when there is nothing left to do."""
    received = wire.receive(sock)
    if received is None:
        return
    message, (journal, guard) = received
    settings = StoreSettings(**message["settings"])
    beginning = Beginning(settings, message["manifest"], message["directory"])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.setswitchinterval(SWITCH_SECONDS)
    wire.hold_many()
    _open_log(Path(beginning.directory))
    links = Links(sock, socket.socket(fileno=guard))
    try:
        held = _held(sock, message.get("held", 0))
        _fill(beginning, Journal(journal), links, held, repository_of(settings, ready))
    except (SnapshotError, OSError, ValueError) as error:
        _log.exception("the filler ends")
        links.tell({"is": "failed", "why": str(error)})


def _fill(
    beginning: Beginning,
    journal: Journal,
    links: Links,
    held: list[Held],
    repository: Repository,
) -> None:
    snapshot = repository.open(beginning.manifest)
    layout = lazy.read_layout(snapshot)
    earlier = lazy.read_working_set(snapshot, layout)
    directory = Path(beginning.directory)
    filler = Filler(FillOrder(layout, directory, earlier), snapshot, journal, links)
    if held:
        filler.take_over(held)
    if filler.run():
        working_set = lazy.write_working_set(layout, filler.needed(), earlier)
        _keep(directory / lazy.WORKING_SET_FILE, working_set)
        marker.clear(directory)
        # In this order: a supervisor that only sees the guard end would start another one.
        links.tell({"is": "filled"})
        links.tell_guard({"is": "done"})
        took, asked = filler.seconds(), len(filler.needed())
        said = "all in place: %d pages in %.3f s (%.3f s of processor), %d blocks asked for"
        _log.info(said, layout.lazy_pages, took, time.process_time(), asked)


def _held(sock: socket.socket, count: int) -> list[Held]:
    """What a predecessor held, one message each."""
    found = []
    for _ in range(count):
        received = wire.receive(sock)
        if received is None:
            break
        message, descriptors = received
        descriptor = descriptors[0] if descriptors else -1
        found.append(Held(message["number"], message["task"], descriptor))
    return found


def _keep(path: Path, content: bytes) -> None:
    """Readable by root only: where programs have their memory is nobody else's business."""
    part = path.with_name(f".{path.name}")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as handle:
        handle.write(content)
    part.rename(path)


def _open_log(directory: Path) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    stream = os.fdopen(os.open(directory / LOG_FILE, flags, 0o600), "a", buffering=1)
    faulthandler.register(signal.SIGUSR2, stream)  # says where it is, if it ever hangs
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    for chatty in ("botocore", "boto3", "urllib3"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


class Spare:
    """A fork of this process that waits to be a filler. Make it while there is one thread.

    It ends with this process, unless it has been taken. `ready` is what it reads from if that is
    the one that is asked for: it must not have spoken to its store yet, connections do not fork.
    """

    def __init__(self, ready: Ready | None = None) -> None:
        ours, there = wire.pair()
        self._sock: socket.socket | None = ours
        self.pid = os.fork()
        if self.pid == 0:
            ours.close()
            os.setsid()
            quiet = os.open(os.devnull, os.O_RDWR)
            os.dup2(quiet, 0)
            os.dup2(quiet, 1)  # whoever reads our output must not have to wait for a filler
            try:
                serve(there, ready)
            finally:
                os._exit(0)
        there.close()

    def take(self) -> socket.socket | None:
        """Its socket, once."""
        sock, self._sock = self._sock, None
        if sock is not None:
            threading.Thread(target=self._reap, name="reap", daemon=True).start()
        return sock

    def _reap(self) -> None:
        """It may be the child of a parent that has gone."""
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)

    def dismiss(self) -> None:
        """It is not needed. Nothing happens if it was taken."""
        if (sock := self.take()) is not None:
            sock.close()
