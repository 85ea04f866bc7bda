"""Who holds a port of this machine."""

from __future__ import annotations

import socket
from dataclasses import dataclass

import psutil

from hub_config.settings import HOST, Ports


@dataclass(frozen=True, slots=True)
class Holder:
    """A taken port. `pid` None: the system does not say who (not root, or another namespace)."""

    port: int
    purpose: str
    pid: int | None = None
    command: str = ""

    def __str__(self) -> str:
        who = f"by PID {self.pid} ({self.command})" if self.pid else "by an unknown program"
        return f"Port {self.port} ({self.purpose}) is taken {who}."


def taken(ports: Ports) -> tuple[Holder, ...]:
    """Every port of the installation that cannot be bound now, with its holder."""
    return tuple(
        _holder(port, purpose) for purpose, port in ports.named().items() if not _is_free(port)
    )


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def _holder(port: int, purpose: str) -> Holder:
    try:
        connections = psutil.net_connections("inet")
    except psutil.AccessDenied:
        return Holder(port, purpose)
    for connection in connections:
        is_listener = connection.status == psutil.CONN_LISTEN
        if is_listener and connection.laddr and connection.laddr.port == port and connection.pid:
            return Holder(port, purpose, connection.pid, _command(connection.pid))
    return Holder(port, purpose)


def _command(pid: int) -> str:
    try:
        return " ".join(psutil.Process(pid).cmdline())[:160]
    except psutil.Error:
        return "?"
