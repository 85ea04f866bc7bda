"""Listening sockets, and a connection that nobody has accepted yet.

It must not have sent anything: CRIU cannot keep what waits in such a connection, and a suspend is
undone until somebody accepts it.
"""

import os
import socket

from stage import stages

home = os.path.expanduser("~")
UNIX = f"{home}/waiting.sock"
unix = socket.socket(socket.AF_UNIX)
unix.bind(UNIX)
unix.listen()
tcp = socket.create_server(("127.0.0.1", 0))
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind(("127.0.0.1", 0))
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sender.connect(udp.getsockname())
for end in (unix, tcp, udp):
    end.settimeout(20)


def knock() -> socket.socket:
    visitor = socket.socket(socket.AF_UNIX)
    visitor.connect(UNIX)
    return visitor


visitor = knock()
for _ in stages():
    host, _ = unix.accept()
    host.sendall(b"yes")
    assert visitor.recv(3, socket.MSG_WAITALL) == b"yes"
    visitor = knock()
    with socket.create_connection(tcp.getsockname(), timeout=20) as connection:
        host, _ = tcp.accept()
        host.sendall(b"welcome")
        assert connection.recv(7, socket.MSG_WAITALL) == b"welcome"
    sender.send(b"datagram")
    assert udp.recv(100) == b"datagram"
