"""The engine's part of `make bench-resume`: how fast memory comes back, with real CRIU and store.

`python -m tests.bench.fill`. A sandbox with an ipykernel that holds random floats, frozen into the
embedded S3 server. Last line JSON; medians of `--runs`, ratios taken within a run.

`thaw_s`: a lazy thaw until the tree runs, store and node cache cold. `full_vs_raw`: until everything
is resident, against a parallel download of the same packs by the same client; `_throttled` with the
server limited to 0.5 GB/s. `fill_gb_s`: from a warm node cache; `fill_vs_criu`: how many times
faster than `criu lazy-pages` with local images. `eager_thaw_s`: all packs downloaded, then `criu
restore` from memory. `working_set_gain`: a first cell that reads 200 MB, without and with the
recorded working set. `filler_growth_mib`: the filler's own memory, largest against smallest.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from snapshot import plan, sandbox, skeleton
from snapshot.checkpoint import Steps
from snapshot.filling import marker, window
from snapshot.filling.escrow import CRIU_SOCKET, Escrow
from snapshot.filling.lazy import WORKING_SET_FILE
from snapshot.filling.program import Spare
from snapshot.freezer import LazySource, LocalFreezer
from snapshot.model import Process, Stored, Thawed
from snapshot.repository import open_repository
from snapshot.restore import Restore, _run_criu
from snapshot.scratch import Scratch
from tests.bench.suspend import MIB, Bench, Kernel, settings_of
from tests.builders.s3 import running_s3_server
from tests.builders.sandboxes import sandboxes, until
from tests.fakes.relays import slow_relay_apart

FETCHERS = 16
THROTTLED = 0.5e9
READ_200_MB = "floats[: 200 * 2**17].sum()"
_DONE = re.compile(r"all in place: (\d+) pages in ([\d.]+) s")


@dataclass
class FillBench(Bench):
    """One frozen kernel, thawed in several ways. `spares` wait to be fillers, as in the product."""

    spares: list[Spare] = field(default_factory=list)

    def cool(self) -> None:
        """Empty the node cache."""
        cache = Path(self.box.settings.cache_directory)
        for pack in cache.iterdir():
            pack.unlink()

    def raw_download(self, stored: Stored) -> float:
        """Seconds of a parallel download of the snapshot's packs."""
        snapshot = self.repository.open(stored.manifest)
        keys = [f"packs/{stored.key.owner}/{pack.id}" for pack in snapshot.body.packs]
        held = {entry.key for entry in self.repository.store.list("packs/")}
        wanted = [key for key in held if any(key.endswith(each.split("/")[-1]) for each in keys)]
        started = time.monotonic()
        with ThreadPoolExecutor(FETCHERS) as pool:
            for data in pool.map(self.repository.store.get, wanted):
                assert data
        return time.monotonic() - started

    async def thaw(self, stored: Stored, *, lazy: bool = True) -> tuple[Thawed, float]:
        """Bring the tree back; seconds until it runs."""
        source = LazySource(self.box.settings, self.spares.pop()) if lazy else None
        freezer = LocalFreezer(self.box.tools, self.repository, lazy=source)
        started = time.monotonic()
        thawed = await freezer.thaw(
            self.box.spec, stored.manifest, on_step=lambda name, seconds: None
        )
        self.box.started.append(thawed.process)
        if thawed.filling is not None:
            thawed.filling.keep()
        return thawed, time.monotonic() - started

    async def filled(self, thawed: Thawed) -> None:
        if thawed.filling is not None:
            await thawed.filling.until_filled()

    async def end(self, thawed: Thawed) -> None:
        """End the tree; the snapshot stays as it is."""
        await sandbox.terminate(thawed.process, 0)
        if thawed.filling is not None:
            thawed.filling.close()
        await until(lambda: not marker.is_set(self.box.spec.directory), "the filler ends")

    def fill_rate(self) -> float:
        """GB a second of the last filling, by the filler's own clock."""
        pages, seconds = _DONE.findall((self.box.spec.directory / "filler.log").read_text())[-1]
        return int(pages) * 4096 / 1e9 / float(seconds)


async def cold(bench: FillBench, stored: Stored) -> dict[str, float]:
    """Nothing on this node: until it runs, until all is there, and the download alone."""
    bench.cool()
    started = time.monotonic()
    pid = bench.spares[-1].pid
    thawed, seconds = await bench.thaw(stored)
    filler = _memory_of(pid)
    await bench.filled(thawed)
    full = time.monotonic() - started
    await bench.end(thawed)
    raw = await asyncio.to_thread(bench.raw_download, stored)
    return {"thaw_s": seconds, "full_s": full, "full_vs_raw": full / raw} | filler


async def throttled(bench: FillBench, stored: Stored, endpoint: str) -> dict[str, float]:
    """The same over a store that gives `THROTTLED` bytes a second at `endpoint`, both sides of the
    ratio."""
    settings = replace(bench.box.settings, location=endpoint)
    box = replace(bench.box, settings=settings)
    row = await cold(replace(bench, box=box, repository=open_repository(settings)), stored)
    return {"full_throttled_s": row["full_s"], "full_vs_raw_throttled": row["full_vs_raw"]}


def _memory_of(pid: int) -> dict[str, float]:
    """Memory of the filler's own, in MiB."""
    return {"filler_mib": psutil.Process(pid).memory_full_info().uss / MIB}


async def warm(bench: FillBench, stored: Stored) -> dict[str, float]:
    """Every pack on this node."""
    thawed, _ = await bench.thaw(stored)
    await bench.filled(thawed)
    await bench.end(thawed)
    thawed, seconds = await bench.thaw(stored)
    await bench.filled(thawed)
    rate = bench.fill_rate()
    await bench.end(thawed)
    return {"warm_thaw_s": seconds, "fill_gb_s": rate}


async def eager(bench: FillBench, stored: Stored) -> dict[str, float]:
    """All packs first, then `criu restore` from memory."""
    bench.cool()
    thawed, seconds = await bench.thaw(stored, lazy=False)
    await bench.end(thawed)
    return {"eager_thaw_s": seconds}


@dataclass(frozen=True, slots=True)
class ByCriu(Restore):
    """A thaw whose memory `criu lazy-pages` brings, from images that lie in memory already."""

    took: list[float] = field(default_factory=list)

    async def _restore(
        self, order: plan.LaunchOrder, folder: Scratch, filling: Escrow | None
    ) -> Process:
        argv = ["--lazy-pages" if word == "--auto-dedup" else word for word in order.argv]
        environment = skeleton.restore_environment(self.spec)
        with window.allowed():
            daemon = await asyncio.create_subprocess_exec(
                *(*self.tools.criu, "lazy-pages", "-D", str(folder.path)),
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                pass_fds=(folder.descriptor,),
            )
            await until((folder.path / CRIU_SOCKET).exists, "criu lazy-pages listens")
            status = await _run_criu(replace(order, argv=tuple(argv)), folder, environment)
        started = time.monotonic()
        process = await self._identify(status)
        await daemon.wait()
        self.took.append(time.monotonic() - started)
        return process


async def by_criu(bench: FillBench, stored: Stored) -> dict[str, float]:
    """GB a second of `criu lazy-pages`, after the tree runs."""
    steps = Steps(lambda name, seconds: None)
    restore = ByCriu(bench.box.tools, bench.repository, bench.box.spec, steps)
    thawed = await restore.run(stored.manifest)
    bench.box.started.append(thawed.process)
    await bench.end(thawed)
    return {"criu_fill_gb_s": stored.memory_bytes / 1e9 / restore.took[0]}


async def working_set(bench: FillBench, kernel: Kernel, stored: Stored) -> dict[str, float]:
    """The same first cell without and with what the first time recorded."""
    seconds = []
    current = stored
    for _ in range(2):
        bench.cool()
        thawed, _ = await bench.thaw(current)
        started = time.monotonic()
        await asyncio.to_thread(kernel.run, READ_200_MB)
        seconds.append(time.monotonic() - started)
        await bench.filled(thawed)
        await kernel.alone()
        assert (bench.box.spec.directory / WORKING_SET_FILE).exists()
        current, _ = await bench.freeze("working-set")
    return {"working_set_gain": seconds[0] / seconds[1]}


async def measure(
    folder: Path, sizes: list[float], runs: int, spares: list[Spare]
) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    with (
        running_s3_server(folder) as server,
        slow_relay_apart(server.endpoint, bytes_per_second=THROTTLED) as slow,
    ):
        settings = settings_of(folder, server)
        repository = open_repository(settings)
        async with sandboxes(folder / "b") as made:
            box = replace(made, repository=repository, settings=settings)
            bench = FillBench(box, repository, spares=spares)
            for gib in sizes:
                kernel = await bench.kernel(gib, seed=1)
                stored, _ = await bench.freeze(f"size-{gib:g}")
                rows = []
                for _ in range(runs):
                    row = await cold(bench, stored)
                    row |= await throttled(bench, stored, slow)
                    row |= await warm(bench, stored) | await eager(bench, stored)
                    row |= await by_criu(bench, stored)
                    row["fill_vs_criu"] = row["fill_gb_s"] / row["criu_fill_gb_s"]
                    rows.append(row)
                    print(f"{gib:g} GiB:", {k: round(v, 3) for k, v in row.items()}, flush=True)
                for name in rows[0]:
                    value = median(row[name] for row in rows)
                    figures.setdefault(name, {})[f"{gib:g}"] = round(value, 3)
            figures |= await working_set(bench, kernel, stored)
    growth = figures["filler_mib"]
    figures["filler_growth_mib"] = round(growth[f"{sizes[-1]:g}"] - growth[f"{sizes[0]:g}"])
    return figures


def spares(sizes: list[float], runs: int) -> list[Spare]:
    """As many as `measure` uses. Call it while there is one thread."""
    return [Spare() for _ in range(len(sizes) * runs * 4 + 2)]


@contextmanager
def _folder(parent: Path) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="hubernate-fill-", dir=parent))
    folder.chmod(0o711)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=float, nargs="+", default=[0.25, 1.0, 4.0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("/srv"))
    wishes = parser.parse_args()
    waiting = spares(wishes.sizes, wishes.runs)
    with _folder(wishes.folder) as folder:
        print(json.dumps(asyncio.run(measure(folder, wishes.sizes, wishes.runs, waiting))))


if __name__ == "__main__":
    main()
