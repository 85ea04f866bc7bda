"""`make bench-hub`: twenty sessions opened at once. Last line JSON: opens, p95_s, failed.

`p95_s` is from the Hub's REST call to the ready server, in seconds, over all opens.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

from hub_config.demo.browserless import Researcher, StoryError, log_in
from hub_config.demo.stage import installation
from hub_config.paths import state_folder


async def timed_open(user: Researcher, server: str) -> float | None:
    """Seconds to a ready server, None when it failed."""
    started = monotonic()
    try:
        await user.open({"profile": "cpu"}, server=server, timeout=280)
    except (StoryError, TimeoutError) as error:
        print(f"{user.name}/{server}: {error}")
        return None
    return monotonic() - started


async def measure(folder: Path, opens: int) -> dict[str, object]:
    """Open them all at once, as named servers of the demo users."""
    downloads = state_folder().downloads
    async with installation(folder / "state", downloads=downloads, idle_after=36000) as stage:
        names = ("alice", "bob", "carol")
        users = [await log_in(stage.url, name, stage.password()) for name in names]
        results = await asyncio.gather(
            *(timed_open(users[i % len(users)], f"s{i}") for i in range(opens))
        )
        for i in range(opens):
            await users[i % len(users)].act("stop", f"s{i}")
        for i in range(opens):
            await users[i % len(users)].until_stopped(f"s{i}", timeout=120)
    times = sorted(seconds for seconds in results if seconds is not None)
    p95 = times[max(0, -(-len(times) * 95 // 100) - 1)] if times else None
    return {
        "opens": opens,
        "p95_s": None if p95 is None else round(p95, 2),
        "failed": opens - len(times),
    }


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--opens", type=int, default=20)
    wishes = parser.parse_args()
    with TemporaryDirectory(prefix="hubernate-bench-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        print(json.dumps(asyncio.run(measure(folder, wishes.opens))))


if __name__ == "__main__":
    main()
