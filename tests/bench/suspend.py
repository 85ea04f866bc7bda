"""`make bench-suspend`: what freezing a kernel costs, with real CRIU and the embedded S3 server.

A sandbox with an ipykernel that holds random floats. Last line JSON; medians of `--runs`, ratios
taken within a run, everything that is compared run one after the other.

`stop_vs_criu`: freeze to last page received, against `criu dump` of the same tree to memory.
`durable_vs_raw`: freeze to commit, against a parallel upload of the same packs by the same client.
`gpu_free_s`: freeze to the proof that the tree is gone.
`cpu_s`: processor seconds of the freezing process alone.
`incremental_*`: bytes stored by a second suspend as a share of memory, resumed and then unchanged, 1 %
changed in runs of 1 MiB, 1 % of the pages changed here and there, one trivial cell run; the last two
also as multiples of what changed. `rss_growth_mib`: growth of the freezing process's peak from the
smallest to the largest size.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from jupyter_client.blocking.client import BlockingKernelClient

from snapshot import criu, sandbox, skeleton
from snapshot.filling import marker
from snapshot.model import Bind, SnapshotKey, Stored, StoreSettings
from snapshot.reader import Snapshot
from snapshot.repository import Repository, open_repository
from snapshot.scratch import scratch
from tests.builders.s3 import S3Server, running_s3_server
from tests.builders.sandboxes import Box, sandboxes, until

MIB, GIB, PAGE = 2**20, 2**30, 4096
RAW_CONNECTIONS = 8

MAKE = """
import numpy as np
generator = np.random.default_rng({seed})
floats = generator.random({size})
pages = floats.view(np.uint64).reshape(-1, 512)
"""
RUNS = """
for start in generator.choice(len(floats) >> 17, len(floats) // 100 + 131071 >> 17, replace=False):
    floats[start << 17 : start + 1 << 17] += 1
"""
SCATTERED = """
pages[generator.choice(len(pages), len(pages) // 100, replace=False), 7] += 1
"""
CHANGES = {
    "incremental_1pct": RUNS,
    "incremental_scattered": SCATTERED,
    "incremental_cell": "1 + 1",
}


@dataclass
class Kernel:
    """An ipykernel in a sandbox; its sockets lie in the home, where the bench can reach them."""

    box: Box
    connection: dict[str, Any] = field(default_factory=dict)

    async def start(self) -> None:
        self.connection = {
            "transport": "ipc",
            "ip": "/home/alice/k",
            "key": uuid.uuid4().hex,
            "signature_scheme": "hmac-sha256",
            **{f"{name}_port": number for number, name in enumerate(_CHANNELS, start=1)},
        }
        for left in self.box.home.glob("k-*"):
            left.unlink()
        path = self.box.home / "kernel.json"
        path.write_text(json.dumps(self.connection))
        path.chmod(0o644)
        binds = (self.box.spec.binds[0], Bind(sys.prefix, sys.prefix, read_only=True))
        await self.box.start(
            *(sys.executable, "-m", "ipykernel_launcher", "-f", "/home/alice/kernel.json"),
            environment={"HOME": "/home/alice", "PATH": "/usr/bin:/bin"},
            binds=binds,
        )
        await until((self.box.home / "k-1").exists, "the kernel listens")

    def run(self, code: str) -> None:
        """Run one cell over a connection of its own. Raises `RuntimeError` for an error in it."""
        client = BlockingKernelClient()
        outside: Any = self.connection | {"ip": str(self.box.home / "k")}
        client.load_connection_info(outside)
        client.start_channels(hb=False)
        try:
            client.wait_for_ready(timeout=60)
            answer = client.execute(code, reply=True, timeout=120)
            if answer["content"]["status"] != "ok":
                raise RuntimeError(str(answer["content"]))
        finally:
            client.stop_channels()
            client.context.destroy(linger=0)

    async def alone(self) -> None:
        """Return when the kernel has seen that nobody is connected any more."""
        async with asyncio.timeout(30):
            while True:
                if not await self.box.freezer.inspect(self.box.process):
                    return
                await asyncio.sleep(0.05)


_CHANNELS = ("shell", "iopub", "stdin", "control", "hb")


@dataclass
class Bench:
    """One box, one store, and steps that are timed."""

    box: Box
    repository: Repository
    sequence: int = 0

    async def kernel(self, gib: float, seed: int) -> Kernel:
        kernel = Kernel(self.box)
        await kernel.start()
        await asyncio.to_thread(kernel.run, MAKE.format(seed=seed, size=int(gib * GIB / 8)))
        await kernel.alone()
        return kernel

    async def freeze(self, session: str) -> tuple[Stored, dict[str, float]]:
        """Freeze the newest tree; seconds of each step, and `all` of them with the proof."""
        self.sequence += 1
        key = SnapshotKey("alice", session, 1, self.sequence)
        steps: dict[str, float] = {}
        started = time.monotonic()
        stored = await self.box.freezer.freeze(
            self.box.spec,
            self.box.process,
            key,
            {},
            disconnect=self.box.disconnect,
            on_step=steps.__setitem__,
        )
        return stored, steps | {"all": time.monotonic() - started}

    async def plain_dump(self) -> float:
        """Seconds of `criu dump` alone, to memory, the tree left running."""
        with scratch() as images:
            argv = criu.dump_arguments(
                self.box.tools,
                self.box.process,
                images.path,
                sandbox.recorded_mounts(self.box.spec),
                hook=Path("/bin/true"),
                log=self.box.folder / "plain.log",
                page_socket=0,
            )
            at = argv.index("--page-server")
            del argv[at : at + 3]
            started = time.monotonic()
            child = await asyncio.create_subprocess_exec(
                *argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=skeleton.criu_environment(self.box.spec),
                pass_fds=(images.descriptor,),
            )
            if await child.wait() != 0:
                raise RuntimeError(criu.explain(criu.read_log(self.box.folder / "plain.log")))
            return time.monotonic() - started

    def plain_upload(self, since: set[str]) -> float:
        """Seconds of a parallel upload of objects like the packs that are not in `since`."""
        store = self.repository.store
        sizes = [entry.size for entry in store.list("packs/") if entry.key not in since]
        with ThreadPoolExecutor(RAW_CONNECTIONS) as pool:
            pack = bytearray(os.urandom(max(sizes)))
            whole, rest = divmod(sum(sizes), len(pack))
            contents = [pack] * whole + [pack[:rest]]
            keys = [f"raw/{number}" for number in range(len(contents))]
            started = time.monotonic()
            list(pool.map(store.put, keys, contents))
            seconds = time.monotonic() - started
            list(pool.map(store.delete, keys))
        return seconds

    def packs(self) -> set[str]:
        return {entry.key for entry in self.repository.store.list("packs/")}

    def forget(self) -> None:
        """Remove all snapshots and packs, in the store and on the node."""
        for stored in self.repository.list():
            self.repository.remove(stored.manifest)
        for key in self.packs():
            self.repository.store.delete(key)
            if self.repository.cache is not None:
                self.repository.cache.drop(key.rpartition("/")[2])


@contextmanager
def peak_mib() -> Iterator[list[float]]:
    """Appends how much the resident memory of this process grew in the block at most."""
    found: list[float] = []
    ctypes.CDLL(None).malloc_trim(
        0
    )  # what earlier runs left free must not hide what this one needs
    Path("/proc/self/clear_refs").write_text("5")
    before = _status_mib("VmRSS")
    yield found
    found.append(_status_mib("VmHWM") - before)


def _status_mib(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))


async def first_suspends(bench: Bench, gib: float, runs: int) -> list[dict[str, float]]:
    """Fresh trees, frozen for the first time."""
    rows = []
    for number in range(runs):
        await bench.kernel(gib, seed=number)
        plain = [await bench.plain_dump() for _ in range(2)][-1]
        before = bench.packs()
        processor = resource.getrusage(resource.RUSAGE_SELF)
        with peak_mib() as peak:
            _, steps = await bench.freeze(f"first-{uuid.uuid4().hex[:8]}")
        after = resource.getrusage(resource.RUSAGE_SELF)
        raw = await asyncio.to_thread(bench.plain_upload, before)
        rows.append(
            {
                "plain_dump_s": plain,
                "stop_s": steps["dump"],
                "stop_vs_criu": steps["dump"] / plain,
                "raw_upload_s": raw,
                "durable_s": steps["dump"] + steps["store"],
                "durable_vs_raw": (steps["dump"] + steps["store"]) / raw,
                "gpu_free_s": steps["all"],
                "cpu_s": after.ru_utime + after.ru_stime - processor.ru_utime - processor.ru_stime,
                "peak_mib": peak[0],
            }
        )
        print(f"{gib:g} GiB:", {name: round(value, 2) for name, value in rows[-1].items()})
        await asyncio.to_thread(bench.forget)
    return rows


async def second_suspends(bench: Bench, gib: float) -> dict[str, float]:
    """One session, suspended again after each kind of change."""
    kernel = await bench.kernel(gib, seed=1)
    earlier, _ = await bench.freeze("again")
    figures: dict[str, float] = {}
    for name, code in ({"incremental_unchanged": ""} | CHANGES).items():
        await bench.box.thaw(earlier)
        await until(lambda: not marker.is_set(bench.box.spec.directory), "filled", 120)
        if code:
            await asyncio.to_thread(kernel.run, code)
            await kernel.alone()
        stored, steps = await bench.freeze("again")
        changed = await asyncio.to_thread(bench_changed, bench.repository, earlier, stored)
        figures[name] = stored.stored_bytes / stored.memory_bytes
        figures[f"{name}_per_changed"] = stored.stored_bytes / max(changed, PAGE)
        figures[f"{name}_s"] = steps["all"]
        print(
            f"{name}: {stored.stored_bytes / MIB:.2f} MiB stored, {changed / MIB:.2f} MiB changed, "
            f"{steps['all']:.2f} s"
        )
        earlier = stored
    return figures


def bench_changed(repository: Repository, before: Stored, after: Stored) -> int:
    """Bytes of pages that are new or have another content than before."""
    old, new = repository.open(before.manifest), repository.open(after.manifest)
    known = set(old.spaces())
    return PAGE * sum(
        _changed_pages(old if space in known else None, new, space) for space in new.spaces()
    )


def _changed_pages(old: Snapshot | None, new: Snapshot, space: tuple[str, int]) -> int:
    now = _pages(new, space)
    if old is None:
        return len(now[0])
    then = _pages(old, space)
    _, left, right = np.intersect1d(now[0], then[0], return_indices=True)
    same = int((now[1][left] == then[1][right]).all(axis=1).sum())
    return len(now[0]) - same


def _pages(snapshot: Snapshot, space: tuple[str, int]) -> tuple[np.ndarray, np.ndarray]:
    """Addresses and contents of all pages of a space."""
    (extents,) = (each.extents for each in snapshot.body.spaces if (each.kind, each.id) == space)
    counts = extents["pages"].astype(np.int64)
    starts = np.concatenate(([0], np.cumsum(counts)[:-1])) * PAGE
    runs = list(zip(extents["vaddr"].tolist(), counts.tolist(), starts.tolist(), strict=True))
    descriptor = os.memfd_create("pages")
    try:
        os.ftruncate(descriptor, max(int(counts.sum()) * PAGE, PAGE))
        snapshot.copy_pages(*space, runs, descriptor)
        total = int(counts.sum())
        content = np.memmap(f"/proc/self/fd/{descriptor}", np.uint64, "r", shape=(total, 512))
    finally:
        os.close(descriptor)
    addresses = [np.arange(pages) * PAGE + vaddr for vaddr, pages, _ in runs]
    return np.concatenate(addresses) if addresses else np.zeros(0, np.int64), content


async def measure(folder: Path, server: S3Server, sizes: list[float], runs: int) -> dict[str, Any]:
    settings = settings_of(folder, server)
    repository = open_repository(settings)
    figures: dict[str, Any] = {}
    peaks: dict[float, float] = {}
    async with sandboxes(folder / "b") as made:
        bench = Bench(replace(made, repository=repository, settings=settings), repository)
        for gib in sizes:
            rows = await first_suspends(bench, gib, runs)
            middle = {name: median(row[name] for row in rows) for name in rows[0]}
            peaks[gib] = middle.pop("peak_mib")
            for name, value in middle.items():
                figures.setdefault(name, {})[f"{gib:g}"] = round(value, 3)
        figures["rss_growth_mib"] = round(peaks[max(sizes)] - peaks[min(sizes)])
        again = await second_suspends(bench, 1.0 if 1.0 in sizes else max(sizes))
        figures |= {name: round(value, 5) for name, value in again.items()}
        for process in bench.box.started:
            if sandbox.is_alive(process):
                await sandbox.terminate(process, 0)
    return figures


def settings_of(folder: Path, server: S3Server) -> StoreSettings:
    """A bucket of the server, with keys and a node cache in the folder."""
    credentials = folder / "store.json"
    secrets = {"access_key": server.access_key, "secret_key": server.secret_key}
    credentials.write_text(json.dumps(secrets))
    return StoreSettings(
        "s3",
        server.endpoint,
        bucket="bench",
        credentials_file=str(credentials),
        keys_directory=str(folder / "keys"),
        cache_directory=str(folder / "cache"),
    )


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=float, nargs="+", default=[0.25, 1.0, 4.0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("/srv"))
    wishes = parser.parse_args()
    wishes.folder.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="hubernate-bench-", dir=wishes.folder))
    folder.chmod(0o711)
    try:
        with running_s3_server(folder) as server:
            figures = asyncio.run(measure(folder, server, wishes.sizes, wishes.runs))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
