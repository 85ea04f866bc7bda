"""`make bench-resume`: kernels with random floats that are suspended and come back.

Last line JSON, seconds, medians of `--runs`. Through Hub and proxy, from the Hub's REST call to the
answered cell: `lazy_first_cell_s` (node cache cold, second resume and later), `warm_first_cell_s`
(node cache warm; `resume_first_cell_s` is the same figure), `first_resume_s` (the very first one,
cold), `flatness` (the largest size against the smallest), `start_fresh_s` (a fresh start of the same
profile to its first cell); `suspend_s` from "Suspend now" to the Hub showing it stopped;
`first_up_s` from an empty folder to an answering Hub with all downloads (null with --no-first-up).

The rest is what `tests.bench.fill` measures of the engine alone. `eager_s` is the cold first cell
with its lazy thaw replaced by a whole download and `criu restore` from memory.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

from hub_config.demo.browserless import Researcher, log_in
from hub_config.demo.stage import installation
from hub_config.demo.story import until_phase
from hub_config.paths import state_folder
from tests.bench import fill

FLOATS_PER_GIB = 2**30 // 8
CHECKOUT = Path(__file__).resolve().parents[2]


async def first_cell(user: Researcher, kernel_id: str, code: str) -> str:
    """The answer of one cell over a new connection."""
    async with user.kernel(kernel_id) as kernel:
        return await kernel.run(code, timeout=120)


async def one_size(user: Researcher, gib: float, runs: int, cache: Path) -> dict[str, float]:
    """Medians for one size, and the fresh start before them."""
    started = monotonic()
    await user.open({"profile": "cpu"})
    kernel_id = await user.new_kernel()
    await first_cell(user, kernel_id, "print(1)")
    fresh = monotonic() - started
    size = int(gib * FLOATS_PER_GIB)
    make = f"import numpy as np; floats = np.random.default_rng(1).random({size}); s = floats.sum()"
    await first_cell(user, kernel_id, make)
    suspends, first = [], [await suspend(user)]
    cool(cache)
    first.append(await resume(user, kernel_id))
    colds, warms = [], []
    for _ in range(runs):
        for seconds, is_cold in ((colds, True), (warms, False)):
            suspends.append(await suspend(user))
            if is_cold:
                cool(cache)
            seconds.append(await resume(user, kernel_id))
    same = await first_cell(user, kernel_id, "print(floats.sum() == s)")
    assert same == "True", same
    await user.act("stop")
    await user.until_stopped()
    return {
        "start_fresh_s": fresh,
        "first_suspend_s": first[0],
        "first_resume_s": first[1],
        "suspend_s": median(suspends),
        "lazy_first_cell_s": median(colds),
        "warm_first_cell_s": median(warms),
    }


async def suspend(user: Researcher) -> float:
    """Seconds from the button to the Hub showing it stopped."""
    await until_filled(user)
    started = monotonic()
    await user.act("suspend")
    await until_phase(user, "suspended", timeout=300)
    await user.until_stopped()
    return monotonic() - started


async def until_filled(user: Researcher) -> None:
    """Wait until nothing of the session's memory is missing: that is not what a suspend takes."""
    await until_phase(user, "running", timeout=300)


async def resume(user: Researcher, kernel_id: str) -> float:
    """Seconds from the Hub's REST call to the answered cell."""
    started = monotonic()
    await user.open({"profile": "cpu"}, timeout=120)
    await first_cell(user, kernel_id, "pass")
    return monotonic() - started


def cool(cache: Path) -> None:
    """Empty the node cache."""
    for pack in cache.iterdir():
        if pack.is_file():
            pack.unlink()


async def measure(folder: Path, sizes: list[float], runs: int) -> dict[str, Any]:
    """All sizes in one installation."""
    figures: dict[str, Any] = {}
    state = folder / "state"
    downloads = state_folder().downloads
    async with installation(state, downloads=downloads, idle_after=36000) as stage:
        user = await log_in(stage.url, "alice", stage.password())
        for gib in sizes:
            row = await one_size(user, gib, runs, state / "cache")
            print(f"{gib:g} GiB:", {k: round(v, 3) for k, v in row.items()}, flush=True)
            for name, value in row.items():
                figures.setdefault(name, {})[f"{gib:g}"] = round(value, 3)
        await user.http.aclose()
    first, last = f"{sizes[0]:g}", f"{sizes[-1]:g}"
    lazy, fresh = figures["lazy_first_cell_s"], figures.pop("start_fresh_s")
    return figures | {
        "sizes_gib": sizes,
        "resume_first_cell_s": figures["warm_first_cell_s"],
        "start_fresh_s": round(median(fresh.values()), 3),
        "flatness": round(lazy[last] / lazy[first], 3),
    }


def against_eager(figures: dict[str, Any]) -> dict[str, Any]:
    """What the same resume would take with everything downloaded first."""
    eager = {
        size: round(seconds - figures["thaw_s"][size] + figures["eager_thaw_s"][size], 3)
        for size, seconds in figures["lazy_first_cell_s"].items()
        if size in figures["thaw_s"]
    }
    lazy = figures["lazy_first_cell_s"]
    speedup = {size: round(seconds / lazy[size], 2) for size, seconds in eager.items()}
    return {"eager_s": eager, "speedup_vs_eager": speedup}


async def first_up(folder: Path) -> float:
    """Seconds from nothing but a checkout to an answering Hub, downloads included."""
    state = folder / "clean"
    started = monotonic()
    environment = os.environ | {
        "HUBERNATE_STATE": str(state),
        "HUBERNATE_DOWNLOADS": str(state),
    }
    bring = ["python3", "-B", "hub_config/setup/bootstrap.py", "runtime"]
    await asyncio.to_thread(subprocess.run, bring, cwd=CHECKOUT, env=environment, check=True)
    async with installation(state, downloads=state):
        return monotonic() - started


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=float, nargs="+", default=[0.25, 1.0, 4.0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--no-first-up", action="store_true")
    parser.add_argument("--no-engine", action="store_true")
    wishes = parser.parse_args()
    # Forked now, while there is one thread.
    spares = [] if wishes.no_engine else fill.spares(wishes.sizes, wishes.runs)
    beside = state_folder().downloads.parent  # /tmp is no place for downloads: sessions have theirs
    with TemporaryDirectory(prefix="hubernate-bench-", dir=beside) as name:
        folder = Path(name)
        folder.chmod(0o711)
        figures = asyncio.run(measure(folder, wishes.sizes, wishes.runs))
        if spares:
            engine = folder / "engine"
            engine.mkdir(mode=0o711)
            figures |= asyncio.run(fill.measure(engine, wishes.sizes, wishes.runs, spares))
            figures |= against_eager(figures)
        seconds = None if wishes.no_first_up else asyncio.run(first_up(folder))
    figures["first_up_s"] = None if seconds is None else round(seconds, 1)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
