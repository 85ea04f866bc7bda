"""pasta between a sandbox and the host: what leads in, what leads out, what survives whom."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pytest

from snapshot import network, proc
from snapshot.model import NetworkSpec, Process
from tests.builders.sandboxes import Box, until

PYTHON = "/usr/bin/python3"
SERVER = """
import socket
listener = socket.create_server(("127.0.0.1", 8888))
print("listening", flush=True)
while True:
    client, _ = listener.accept()
    client.sendall(b"from inside")
    client.close()
"""
PROBE = """
import socket, sys, time
def reach(host, port):
    try:
        with socket.create_connection((host, port), timeout=3) as connection:
            return connection.recv(20).decode() or "closed"
    except OSError as error:
        return type(error).__name__
while reach("127.0.0.1", {targets!r}[0][1]) == "ConnectionRefusedError":
    time.sleep(0.01)
for host, port in {targets!r}:
    print(host, port, "got:", reach(host, port), flush=True)
print("done", flush=True)
time.sleep(1000)
"""


@contextmanager
def host_server(address: str, family: int = socket.AF_INET) -> Iterator[int]:
    """A server on the host that says "from the host"; yields its port."""
    with socket.create_server((address, 0), family=family) as listener:

        def serve() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                with client:
                    client.sendall(b"from the host")

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(10)


def ask(port: int) -> str:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=3) as connection:
            return connection.recv(20).decode()
    except OSError:
        return ""


async def test_a_host_port_leads_to_the_inner_port(box: Box) -> None:
    await box.start(PYTHON, "-c", SERVER)
    await box.says("listening")
    link = await box.connect()
    assert ask(link.host_port) == "from inside"
    await link.close()
    assert ask(link.host_port) == ""
    assert not proc.exists(link.process)
    await link.close()


async def test_a_taken_host_port_is_said_and_nothing_is_left(box: Box) -> None:
    await box.start("/bin/sleep", "1000")
    with host_server("127.0.0.1") as port:
        spec = replace(box.spec, network=NetworkSpec(host_port=port))
        with pytest.raises(network.PortTakenError, match=str(port)):
            await network.connect(box.process, spec, box.tools)
    assert network.find(box.spec) is None


async def test_a_link_is_found_again_and_replaced_by_the_next(box: Box) -> None:
    await box.start(PYTHON, "-c", SERVER)
    first = await box.connect()
    assert network.find(box.spec) == first
    second = await box.connect()
    assert proc.has_ended(first.process)
    assert network.find(box.spec) == second


async def test_a_record_of_another_process_is_not_believed(box: Box) -> None:
    await box.start("/bin/sleep", "1000")
    link = await box.connect()
    stranger = network.Link(Process(link.process.pid, link.process.started + 1), link.host_port)
    path = box.spec.directory / network.LINK_FILE
    path.write_bytes(network.to_json(stranger))
    assert network.find(box.spec) is None


async def test_only_the_named_ports_of_the_hosts_loopback_are_reachable(box: Box) -> None:
    outward = _own_address()
    with ExitStack() as stack:
        allowed = stack.enter_context(host_server("127.0.0.1"))
        secret = stack.enter_context(host_server("127.0.0.1"))
        secret6 = stack.enter_context(host_server("::1", socket.AF_INET6))
        hosts = ["127.0.0.1", "::1", network.DNS_FORWARDER, *outward]
        targets = [(host, port) for port in (allowed, secret, secret6) for host in hosts]
        probe = PROBE.format(targets=[*targets, *_gateways(allowed, secret)])
        await box.start(PYTHON, "-c", probe, network=NetworkSpec(reachable_ports=(allowed,)))
        await box.connect()
        said = await box.says("done")
    assert f"127.0.0.1 {allowed} got: from the host" in said
    reached = [line for line in said.splitlines() if "from the host" in line]
    assert all(line.split()[1] == str(allowed) for line in reached), reached


def _own_address() -> list[str]:
    """The host's address towards outside, if it has one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.254", 9))
        except OSError:
            return []
        return [probe.getsockname()[0]]


def _gateways(*ports: int) -> list[tuple[str, int]]:
    """The default gateway, which pasta would otherwise map to the host's loopback."""
    found = []
    for line in proc.read_text("/proc/net/route").splitlines()[1:]:
        fields = line.split()
        if fields[1] == "00000000":
            address = socket.inet_ntoa(bytes.fromhex(fields[2])[::-1])
            found += [(address, port) for port in ports]
    return found


INNER_CONNECTIONS = """
import socket, time
listener = socket.create_server(("127.0.0.1", 0))
near = socket.create_connection(listener.getsockname())
far, _ = listener.accept()
outside = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
while True:
    try:
        outside.connect(("192.0.2.77", 53))
        break
    except OSError:
        time.sleep(0.01)
print("connected", flush=True)
while True:
    near.sendall(b"x")
    assert far.recv(1) == b"x"
    try:
        outside.send(b"x")
    except OSError as error:
        print("outside:", error.errno, flush=True)
    time.sleep(0.02)
"""


async def test_outside_connections_are_closed_and_told_inner_ones_stay(box: Box) -> None:
    process = await box.start(PYTHON, "-c", INNER_CONNECTIONS)
    link = await box.connect()
    await box.says("connected")
    await link.close()
    closed = await network.destroy_outside_connections(process, box.tools)
    assert closed == ("192.0.2.77:53",)
    await box.says("outside:")
    assert await network.destroy_outside_connections(process, box.tools) == ()
    await until(lambda: box.output().count("outside:") > 3, "the program goes on")
    assert "Traceback" not in box.output()
