"""64 threads, one of them asleep on a condition, one waiting for a lock."""

import queue
import threading
import time

from stage import stages, wait_for

counts = [0] * 62
own = threading.local()
lock = threading.Lock()
questions: queue.Queue[int] = queue.Queue()
answers: queue.Queue[int] = queue.Queue()
locked: list[bool] = []


def count(number: int) -> None:
    own.number = number
    while True:
        assert own.number == number
        counts[number] += 1
        time.sleep(0.05)


def answer() -> None:
    while True:
        answers.put(questions.get() * 7)


def wait_for_the_lock() -> None:
    while True:
        with lock:
            locked.append(True)
        time.sleep(0.05)


lock.acquire()
threads = [threading.Thread(target=count, args=(n,), daemon=True) for n in range(62)]
threads += [threading.Thread(target=f, daemon=True) for f in (answer, wait_for_the_lock)]
for thread in threads:
    thread.start()
identities = [(thread.ident, thread.native_id) for thread in threads]

for _ in stages():
    before = list(counts)
    wait_for(lambda before=before: all(now > then for now, then in zip(counts, before)))
    questions.put(6)
    assert answers.get(timeout=20) == 42
    assert not locked
    lock.release()
    wait_for(lambda: locked)
    lock.acquire()
    locked.clear()
    assert [(thread.ident, thread.native_id) for thread in threads] == identities
    assert threading.active_count() == 65
