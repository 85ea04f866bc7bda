"""The sandbox's way to the network: pasta, attached from outside, ended before every freeze.

The sandbox's network namespace holds only its loopback; pasta adds an interface whose connections
it makes itself, as ordinary sockets. Of the host's loopback only the named ports are reachable.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter

from snapshot import proc, programs
from snapshot.model import NetworkSpec, Process, SandboxSpec, Tools
from snapshot.skeleton import DNS_FORWARDER

LINK_FILE = "network.json"
LOG_FILE = "network.log"
PID_FILE = "network.pid"
READY_SECONDS = 10.0
CLOSE_SECONDS = 5.0
PORT_ATTEMPTS = 8
POLL_SECONDS = 0.005
SOCKET_SECONDS = 10.0
OUTSIDE = ("not", "dst", "127.0.0.0/8", "and", "not", "dst", "[::1]")


class NetworkError(Exception):
    """The sandbox could not be connected. The message holds what pasta said."""


class PortTakenError(NetworkError):
    """Another program listens on the host port that was asked for."""


@dataclass(frozen=True, slots=True)
class Link:
    """A running connection: its process on the host, and the host port that leads inside."""

    process: Process
    host_port: int
    record: str = ""

    async def close(self) -> None:
        """End it and wait until it is gone. May be called twice. Open connections just stop."""
        programs.send_signal(self.process, signal.SIGTERM)
        if not await programs.wait_until_ended(self.process, CLOSE_SECONDS):
            programs.send_signal(self.process, signal.SIGKILL)
            await programs.wait_until_ended(self.process, CLOSE_SECONDS)
        if self.record:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.record)


_LINK = TypeAdapter(Link)


def free_port() -> int:
    """A TCP port of the host's loopback that nobody listens on at this moment."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def connect(
    process: Process, spec: SandboxSpec, tools: Tools, *, choose_port: bool = False
) -> Link:
    """Connect a sandbox and return once its ports are forwarded.

    With `choose_port` a free host port is taken instead of `spec.network.host_port`. A link left
    behind by an earlier supervisor is ended first. Raises `PortTakenError` or `NetworkError`.
    """
    if earlier := find(spec):
        await earlier.close()
    for _ in range(PORT_ATTEMPTS):
        wanted = replace(spec.network, host_port=free_port()) if choose_port else spec.network
        try:
            return await _attach(process, spec, tools, wanted)
        except PortTakenError:
            if not choose_port:
                raise
    raise NetworkError("No free port was found on this machine's loopback.")


async def destroy_outside_connections(process: Process, tools: Tools) -> tuple[str, ...]:
    """Close what is left of the tree's connections to outside, once pasta is gone.

    Connections inside the tree stay. Returns the far ends (address:port) that were closed, for
    the user's note. Raises `NetworkError`.
    """
    argv = [*tools.socket_statistics, "-H", "-n", "-t", "-u", "-K", "state", "connected", *OUTSIDE]
    try:
        finished = await programs.run(
            programs.launcher("network"),
            seconds=SOCKET_SECONDS,
            text=json.dumps({"pid": process.pid, "argv": argv}),
        )
    except (TimeoutError, OSError) as error:
        raise NetworkError(f"Open connections could not be closed: {error!r}") from error
    if finished.status != 0:
        raise NetworkError(f"Open connections could not be closed: {finished.errors.strip()}")
    return far_ends(finished.output)


def far_ends(listing: str) -> tuple[str, ...]:
    """The peers in the output of `ss -H`, sorted, each once (pure)."""
    rows = [line.split() for line in listing.splitlines()]
    return tuple(sorted({row[5] for row in rows if len(row) >= 6}))


def find(spec: SandboxSpec) -> Link | None:
    """The link recorded for this sandbox if it still runs, also after its supervisor died."""
    return recorded(Path(spec.directory))


def recorded(directory: Path) -> Link | None:
    """The same for a sandbox of which only the folder is known."""
    try:
        link = _LINK.validate_json((directory / LINK_FILE).read_bytes())
    except (OSError, ValueError):
        return None
    return link if not proc.has_ended(link.process) else None


def arguments(process: Process, network: NetworkSpec, tools: Tools, pid_file: Path) -> list[str]:
    """pasta's argument vector (pure).

    `--no-map-gw` takes away pasta's default of showing the host's loopback at the gateway's
    address, and `none` its default of forwarding whatever listens.
    """
    inward = f"127.0.0.1/{network.host_port}:{network.inner_port}"
    outward = ",".join(map(str, network.reachable_ports))
    return [
        *tools.pasta,
        *("--foreground", "--quiet", "--runas", "0:0", "--pid", str(pid_file)),
        *("--config-net", "--no-netns-quit", "--no-map-gw", "--host-lo-to-ns-lo"),
        *("--dns-forward", DNS_FORWARDER),
        *("--userns", f"/proc/{process.pid}/ns/user", "--netns", f"/proc/{process.pid}/ns/net"),
        *("-t", inward if network.host_port else "none"),
        *("-T", outward or "none", "-u", "none", "-U", "none"),
    ]


async def _attach(process: Process, spec: SandboxSpec, tools: Tools, network: NetworkSpec) -> Link:
    folder = Path(spec.directory)
    pid_file = folder / PID_FILE
    with contextlib.suppress(FileNotFoundError):
        os.unlink(pid_file)
    # Spawned without asyncio: a link outlives its supervisor, so no event loop may own it.
    pid = _spawn(arguments(process, network, tools, pid_file), folder / LOG_FILE)
    link = Link(proc.identify(pid) or Process(pid, 0), network.host_port, str(folder / LINK_FILE))
    try:
        _record(link, folder / LINK_FILE)
        await _wait_until_ready(link, pid_file, folder / LOG_FILE)
    except BaseException:
        await asyncio.shield(link.close())
        raise
    return link


def _spawn(argv: list[str], log: Path) -> int:
    write = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    return os.posix_spawn(
        argv[0],
        argv,
        programs.CLEAN_ENVIRONMENT,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), write, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )


def to_json(link: Link) -> bytes:
    """As `find` reads it."""
    return _LINK.dump_json(link)


def _record(link: Link, path: Path) -> None:
    temporary = path.with_suffix(".new")
    temporary.write_bytes(to_json(link))
    temporary.replace(path)


async def _wait_until_ready(link: Link, pid_file: Path, log: Path) -> None:
    """pasta writes its PID once every port is bound; nothing else tells."""
    async with asyncio.timeout(READY_SECONDS):
        while not proc.read_text(str(pid_file)):
            if proc.has_ended(link.process):
                raise _explain(proc.read_text(str(log)), link.host_port)
            await asyncio.sleep(POLL_SECONDS)


def _explain(said: str, host_port: int) -> NetworkError:
    last = (said.strip().splitlines() or ["no reason given"])[-1]
    if "Address already in use" in said and str(host_port) in said:
        return PortTakenError(f"Port {host_port} of this machine's loopback is taken by a program.")
    return NetworkError(f"The network could not be connected: {last}")
