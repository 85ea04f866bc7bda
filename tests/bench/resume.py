"""`make bench-resume`: suspend and resume of kernels with random floats, through Hub and proxy.

Last line JSON, seconds, medians of `--runs`: from the Hub's REST call to the answered cell
(`resume_first_cell_s`), from "Suspend now" to the Hub showing it stopped (`suspend_s`), a fresh start
of the same profile to its first cell (`start_fresh_s`), and everything from an empty folder to an
answering Hub with all downloads (`first_up_s`, null with --no-first-up).
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

from hub_config.demo.browserless import Researcher, log_in
from hub_config.demo.stage import installation
from hub_config.demo.story import until_phase
from hub_config.paths import state_folder

FLOATS_PER_GIB = 2**30 // 8
CHECKOUT = Path(__file__).resolve().parents[2]


async def first_cell(user: Researcher, kernel_id: str, code: str) -> str:
    """The answer of one cell over a new connection."""
    async with user.kernel(kernel_id) as kernel:
        return await kernel.run(code, timeout=120)


async def one_size(user: Researcher, gib: float, runs: int) -> tuple[float, float, float]:
    """Medians of suspend, resume to first cell, and the fresh start before them."""
    started = monotonic()
    await user.open({"profile": "cpu"})
    kernel_id = await user.new_kernel()
    await first_cell(user, kernel_id, "print(1)")
    fresh = monotonic() - started
    size = int(gib * FLOATS_PER_GIB)
    make = f"import numpy as np; floats = np.random.default_rng(1).random({size}); s = floats.sum()"
    await first_cell(user, kernel_id, make)
    suspends, resumes = [], []
    for _ in range(runs):
        started = monotonic()
        await user.act("suspend")
        await until_phase(user, "suspended", timeout=120)
        await user.until_stopped()
        suspends.append(monotonic() - started)
        started = monotonic()
        await user.open({"profile": "cpu"}, timeout=120)
        await first_cell(user, kernel_id, "pass")
        resumes.append(monotonic() - started)
        same = await first_cell(user, kernel_id, "print(floats.sum() == s)")
        assert same == "True", same
    await user.act("stop")
    await user.until_stopped()
    return median(suspends), median(resumes), fresh


async def measure(folder: Path, sizes: list[float], runs: int) -> dict[str, object]:
    """All sizes in one installation."""
    suspend: dict[str, float] = {}
    resume: dict[str, float] = {}
    fresh: list[float] = []
    downloads = state_folder().downloads
    async with installation(folder / "state", downloads=downloads, idle_after=36000) as stage:
        user = await log_in(stage.url, "alice", stage.password())
        for gib in sizes:
            suspend[f"{gib:g}"], resume[f"{gib:g}"], start = await one_size(user, gib, runs)
            fresh.append(start)
            print(f"{gib:g} GiB: {suspend[f'{gib:g}']:.2f} s, {resume[f'{gib:g}']:.2f} s")
        await user.http.aclose()
    return {
        "sizes_gib": sizes,
        "suspend_s": {k: round(v, 3) for k, v in suspend.items()},
        "resume_first_cell_s": {k: round(v, 3) for k, v in resume.items()},
        "start_fresh_s": round(median(fresh), 3),
    }


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
    parser.add_argument("--sizes", type=float, nargs="+", default=[0.25, 1.0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--no-first-up", action="store_true")
    wishes = parser.parse_args()
    beside = state_folder().downloads.parent  # /tmp is no place for downloads: sessions have theirs
    with TemporaryDirectory(prefix="hubernate-bench-", dir=beside) as name:
        folder = Path(name)
        folder.chmod(0o711)
        figures = asyncio.run(measure(folder, wishes.sizes, wishes.runs))
        seconds = None if wishes.no_first_up else asyncio.run(first_up(folder))
    figures["first_up_s"] = None if seconds is None else round(seconds, 1)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
