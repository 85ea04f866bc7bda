"""UNIX sockets between processes: streams and datagrams with data on its way, names, a listener."""

import os
import socket

from stage import stages

home = os.path.expanduser("~")
near, far = socket.socketpair()
packets, packets_far = socket.socketpair(type=socket.SOCK_SEQPACKET)
named = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
named.bind(f"{home}/named.sock")
sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
sender.connect(f"{home}/named.sock")
listener = socket.socket(socket.AF_UNIX)
listener.bind(f"{home}/listener.sock")
listener.listen()
abstract = socket.socket(socket.AF_UNIX)
abstract.bind("\0abstract-creature")
abstract.listen()
client = socket.socket(socket.AF_UNIX)
client.connect(f"{home}/listener.sock")
server, _ = listener.accept()
for end in (near, far, packets, packets_far, named, listener, abstract, client, server):
    end.settimeout(20)
if os.fork() == 0:
    near.settimeout(None)
    while True:
        near.sendall(near.recv(100).upper())


def fill() -> None:
    """Leave something in every queue."""
    packets.send(b"packet 1")
    packets.send(b"packet 2")
    sender.send(b"datagram")
    client.sendall(b"s" * 50_000)


fill()
for _ in stages():
    assert (packets_far.recv(100), packets_far.recv(100)) == (b"packet 1", b"packet 2")
    assert named.recv(100) == b"datagram"
    assert server.recv(50_000, socket.MSG_WAITALL) == b"s" * 50_000
    far.sendall(b"through the child")
    assert far.recv(100) == b"THROUGH THE CHILD"
    for address, door in ((f"{home}/listener.sock", listener), ("\0abstract-creature", abstract)):
        with socket.socket(socket.AF_UNIX) as visitor:
            visitor.connect(address)
            host, _ = door.accept()
            host.sendall(b"welcome")
            assert visitor.recv(7, socket.MSG_WAITALL) == b"welcome"
    # A descriptor can be handed over as before.
    reading, writing = os.pipe()
    socket.send_fds(packets, [b"take"], [writing])
    _, given, _, _ = socket.recv_fds(packets_far, 10, 1)
    os.write(given[0], b"given")
    assert os.read(reading, 10) == b"given"
    for descriptor in (reading, writing, given[0]):
        os.close(descriptor)
    fill()
