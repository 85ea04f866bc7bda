"""How fast memory goes into the real S3 server and comes back: one JSON object on the last line.

`python -m tests.bench.store [--mib 1024] [--server-option …]`. Gigabytes (10^9 bytes) per second of
random floats. `put_raw` and `get_raw` are boto3 alone, parallel, with objects of the size of packs: the limit
of this server on this machine. Best of `--rounds`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from snapshot.cache import PackCache
from snapshot.chunker import PAGE
from snapshot.keyfiles import LocalWrapping
from snapshot.keys import Keys
from snapshot.model import SnapshotKey
from snapshot.packs import PACK_BYTES
from snapshot.repository import Repository
from snapshot.stores.s3 import S3Store
from tests.builders.s3 import running_s3_server

MIB = 2**20
STEP = MIB  # what CRIU sends at once
BASE = 0x7F00_0000_1000


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


class Bench:
    """One server, one repository, one gigabyte."""

    def __init__(self, store: S3Store, folder: Path, mib: int) -> None:
        self.store, self.folder = store, folder
        self.data = memoryview(np.random.default_rng(1).random(mib * MIB // 8).tobytes())
        self.sequence = 0
        cache = PackCache(folder / "cache", 64 * 2**30)
        self.repository = Repository(
            store, Keys(store, LocalWrapping(folder / "keys")), cache=cache
        )
        self.manifest = ""

    def save(self, session: str) -> None:
        self.sequence += 1
        key = SnapshotKey("ada", session, 1, self.sequence)
        with self.repository.writer(key, {}) as writer:
            for start in range(0, len(self.data), STEP):
                writer.add_pages("task", 1, BASE + start, self.data[start : start + STEP])
            self.manifest = writer.commit({}).manifest

    def load(self) -> float:
        descriptor = os.memfd_create("pages")
        os.ftruncate(descriptor, len(self.data))
        runs = [(BASE, len(self.data) // PAGE, 0)]
        try:
            snapshot = self.repository.open(self.manifest)
            return timed(lambda: snapshot.copy_pages("task", 1, runs, descriptor))
        finally:
            os.close(descriptor)

    def load_cold(self) -> float:
        for path in (self.folder / "cache").iterdir():
            path.unlink()
        return self.load()

    def put_raw(self) -> None:
        def put(start: int) -> None:
            self.store.put(f"raw/{start}", bytes(self.data[start : start + PACK_BYTES]))

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(put, range(0, len(self.data), PACK_BYTES)))

    def get_raw(self) -> None:
        keys = [f"raw/{start}" for start in range(0, len(self.data), PACK_BYTES)]
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda key: len(self.store.get(key)), keys))


def run(bench: Bench, rounds: int) -> dict[str, float]:
    size = len(bench.data) / 1e9
    best: dict[str, float] = {}

    def note(name: str, seconds: float) -> None:
        best[name] = min(seconds, best.get(name, seconds))

    for number in range(rounds):
        note("put_raw", timed(bench.put_raw))
        note("save", timed(lambda: bench.save(f"s{number}")))  # noqa: B023
        note("save_unchanged", timed(lambda: bench.save(f"s{number}")))  # noqa: B023
        note("load_warm", bench.load())
        note("get_raw", timed(bench.get_raw))
        note("load_cold", bench.load_cold())
        for stored in bench.repository.list():
            bench.repository.remove(stored.manifest)
    note("list", timed(lambda: list(bench.store.list(""))))
    figures = {f"{name}_gb_s": round(size / seconds, 2) for name, seconds in best.items()}
    del figures["list_gb_s"]
    figures["load_warm_s"] = round(best["load_warm"], 3)
    figures["list_s"] = round(best["list"], 3)
    figures["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return figures


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--server-option", action="append", default=[])
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-store-"))
    try:
        with running_s3_server(folder, *arguments.server_option) as server:
            bench = Bench(server.new_store(), folder, arguments.mib)
            print(json.dumps({"mib": arguments.mib} | run(bench, arguments.rounds)))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
