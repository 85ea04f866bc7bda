"""TCP connections between processes of the session, with data on its way in both directions."""

import hashlib
import os
import socket
import threading

from stage import stages

QUESTION, ANSWER = 300_000, 200_000


def echo(connection: socket.socket) -> None:
    """In a process of its own: answers each question with its digest, again and again."""
    while True:
        question = receive(connection, QUESTION)
        digest = hashlib.sha256(question).digest()
        connection.sendall(digest * (ANSWER // len(digest)))


def receive(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = connection.recv(count - len(data))
        assert part, "the connection ended"
        data += part
    return bytes(data)


def connect(family: int, address: str) -> tuple[socket.socket, socket.socket]:
    listener = socket.create_server((address, 0), family=family)
    near = socket.create_connection(listener.getsockname()[:2])
    far, _ = listener.accept()
    listener.close()
    for end in (near, far):
        end.settimeout(20)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return near, far


near, far = connect(socket.AF_INET, "127.0.0.1")
near6, far6 = connect(socket.AF_INET6, "::1")
if os.fork() == 0:
    near.close()
    far.settimeout(None)
    try:
        echo(far)
    finally:
        os._exit(0)  # the first process, which asks, notices and tells
far.close()
half_near, half_far = connect(socket.AF_INET, "127.0.0.1")
half_near.sendall(b"the last words")
half_near.shutdown(socket.SHUT_WR)

digest = b""
for number, _ in enumerate(stages()):
    if number:
        # What was sent before the freeze arrives after it, to the last byte.
        assert receive(near, 32 * (ANSWER // 32)) == digest * (ANSWER // 32)
        assert receive(far6, 100_000) == b"6" * 100_000
    question = os.urandom(QUESTION)
    digest = hashlib.sha256(question).digest()
    threading.Thread(target=near.sendall, args=(question,), daemon=True).start()
    near6.sendall(b"6" * 100_000)
    assert near.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    if number == 2:
        assert receive(half_far, 14) == b"the last words" and half_far.recv(1) == b""
        half_far.sendall(b"heard")
        assert receive(half_near, 5) == b"heard"
