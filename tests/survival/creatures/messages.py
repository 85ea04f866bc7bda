"""ZeroMQ over TCP and over UNIX sockets: a request that waits for its answer, messages on the way."""

import os
import threading

import zmq

from stage import stages

context = zmq.Context()
home = os.path.expanduser("~")


def pair(kind: int, other: int, address: str) -> tuple[zmq.Socket, zmq.Socket]:
    near, far = context.socket(kind), context.socket(other)
    near.bind(address)
    far.connect(near.getsockopt_string(zmq.LAST_ENDPOINT))
    for end in (near, far):
        end.rcvtimeo = end.sndtimeo = 20_000
    return near, far


server, client = pair(zmq.REP, zmq.REQ, "tcp://127.0.0.1:0")
pull, push = pair(zmq.PULL, zmq.PUSH, "tcp://127.0.0.1:0")
publisher, subscriber = pair(zmq.PUB, zmq.SUB, f"ipc://{home}/zmq.sock")
subscriber.subscribe(b"")
answers: list[bytes] = []


def ask() -> None:
    while True:
        client.send(b"question")
        answers.append(client.recv())


client.rcvtimeo = -1
threading.Thread(target=ask, daemon=True).start()
push.send(b"on the way")
for number, _ in enumerate(stages(), start=1):
    assert pull.recv() == b"on the way"
    push.send(b"on the way")
    assert server.recv() == b"question"
    server.send(b"answer")
    publisher.send(b"news")
    assert subscriber.recv() == b"news"
    assert len(answers) >= number - 1
