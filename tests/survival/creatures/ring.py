"""Four processes in a ring of TCP connections with keepalive, as gloo's workers have: a number goes
round and every one adds its own."""

import os
import socket

from stage import stages

SIZE = 4
listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(SIZE)]


def join(rank: int) -> tuple[socket.socket, socket.socket]:
    """A member's connections to the next and from the one before."""
    onward = socket.create_connection(listeners[(rank + 1) % SIZE].getsockname())
    back, _ = listeners[rank].accept()
    for end in (onward, back):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2)
    return onward, back


def numbers(values: list[int]) -> bytes:
    return b"".join(value.to_bytes(8, "little") for value in values)


def read(end: socket.socket) -> list[int]:
    data = b""
    while len(data) < 8_000:
        part = end.recv(8_000 - len(data))
        if not part:
            os._exit(
                0
            )  # the ring ended; in the first process, the test sees that too little was said
        data += part
    return [int.from_bytes(data[i : i + 8], "little") for i in range(0, 8_000, 8)]


for rank in range(1, SIZE):
    if os.fork() == 0:
        onward, back = join(rank)
        while True:
            onward.sendall(numbers([value + rank for value in read(back)]))
onward, back = join(0)
back.settimeout(20)
# Once round: now each has accepted its connection.
onward.sendall(numbers([0] * 1000))
assert read(back) == [1 + 2 + 3] * 1000

for number, _ in enumerate(stages()):
    if number:
        # This round began before the freeze.
        assert read(back) == [n + 1 + 2 + 3 for n in range(1000)]
    for _ in range(20):
        onward.sendall(numbers(list(range(1000))))
        assert read(back) == [n + 1 + 2 + 3 for n in range(1000)]
    onward.sendall(numbers(list(range(1000))))
