"""A TCP relay on a loopback port that lets answers through at so many bytes a second, and no faster.

with slow_relay(server.endpoint, bytes_per_second=1e6) as endpoint:
    store = S3Store(replace(server.settings("bucket"), endpoint=endpoint))

`python -m tests.fakes.relays ENDPOINT RATE` is one as a program of its own, for benchmarks: it says
its endpoint and ends with its standard input. Bytes are spliced, so that it takes little processor.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

LARGEST, LEAST = 2**18, 2**12
PIECES_A_SECOND = 20
UNPACED = float("inf")


class Pace:
    """`bytes_per_second`, all connections together, in pieces of `piece` bytes at most."""

    def __init__(self, bytes_per_second: float) -> None:
        self._rate = bytes_per_second
        self.piece = int(max(LEAST, min(LARGEST, bytes_per_second / PIECES_A_SECOND)))
        self._free_at = 0.0
        self._lock = threading.Lock()

    def take(self, size: int) -> None:
        """Return when so many bytes may pass."""
        with self._lock:
            self._free_at = max(self._free_at, time.monotonic()) + size / self._rate
            wait = self._free_at - time.monotonic()
        if wait > 0:
            time.sleep(wait)


def _carry(source: socket.socket, target: socket.socket, pace: Pace) -> None:
    """Everything that comes, and then the end."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, LARGEST)
    with contextlib.suppress(OSError):
        while count := os.splice(source.fileno(), writing, pace.piece):
            pace.take(count)
            while count:
                count -= os.splice(reading, target.fileno(), count)
    for each in (reading, writing):
        os.close(each)
    for sock in (source, target):  # an end on one side is passed on to both
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


def _serve(client: socket.socket, address: tuple[str, int], pace: Pace) -> None:
    with client, contextlib.suppress(OSError), socket.create_connection(address) as server:
        for sock in (client, server):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        asking = threading.Thread(target=_carry, args=(client, server, Pace(UNPACED)), daemon=True)
        asking.start()
        _carry(server, client, pace)
        asking.join()


def _accept(listener: socket.socket, address: tuple[str, int], pace: Pace) -> None:
    with contextlib.suppress(OSError):
        while True:
            client, _ = listener.accept()
            threading.Thread(target=_serve, args=(client, address, pace), daemon=True).start()


@contextlib.contextmanager
def slow_relay(endpoint: str, *, bytes_per_second: float) -> Iterator[str]:
    """The endpoint under which that server is slow. Connections that are open at the end stay until
    one side closes them."""
    place = urlsplit(endpoint)
    address = (place.hostname or "", place.port or 80)
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        pace = Pace(bytes_per_second)
        accepting = threading.Thread(target=_accept, args=(listener, address, pace))
        accepting.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join()


@contextlib.contextmanager
def slow_relay_apart(endpoint: str, *, bytes_per_second: float) -> Iterator[str]:
    """The same in a process of its own, so that it shares no interpreter with what is measured."""
    argv = [sys.executable, "-m", __name__, endpoint, str(bytes_per_second)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        yield child.stdout.readline().strip()
        child.communicate()


def main() -> None:
    """Entry point."""
    with slow_relay(sys.argv[1], bytes_per_second=float(sys.argv[2])) as endpoint:
        print(endpoint, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
