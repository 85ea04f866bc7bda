"""multiprocessing's manager over TCP: a server process, and proxies in others."""

import multiprocessing
from multiprocessing.managers import SyncManager

from stage import stages

manager = SyncManager(address=("127.0.0.1", 0), authkey=b"creature")
manager.start()
counts = manager.dict(total=0)
questions, answers = manager.Queue(), manager.Queue()


def work() -> None:
    while True:
        number = questions.get()
        counts["total"] += number
        answers.put(counts["total"])


worker = multiprocessing.Process(target=work, daemon=True)
worker.start()
for number, _ in enumerate(stages(), start=1):
    questions.put(10)
    assert answers.get(timeout=20) == 10 * number == counts["total"]
    assert worker.is_alive()
