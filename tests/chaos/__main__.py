"""`make chaos`: random faults, and whether everything held. Last line JSON.

`--seed` repeats a run as far as processes let it: what strikes when is the same, how far everybody
has got by then is not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections import deque
from pathlib import Path
from random import SystemRandom
from tempfile import TemporaryDirectory
from time import monotonic

from hub_config.demo.stage import installation
from hub_config.paths import state_folder
from tests.chaos.enclosure import enclosed
from tests.chaos.faults import own_disk
from tests.chaos.plan import CYCLES, Plan, plan
from tests.chaos.rounds import Findings, Rounds


async def run(folder: Path, plans: deque[Plan]) -> Findings:
    """Rounds on one installation, to the last one or to one after which something is wrong."""
    state, found = folder / "state", Findings()
    downloads = state_folder().downloads
    async with installation(state, downloads=downloads, gpus=2, idle_after=36000) as stage:
        rounds = Rounds(stage)
        while plans and not found:
            begun, this = monotonic(), plans.popleft()
            print(f"round {this.name}: {', '.join(this.faults()) or 'no fault'}", flush=True)
            found = await rounds.play(this)
            sentences = [f"round {this.name}: {monotonic() - begun:.0f} s", *found.sentences()]
            print(*sentences, sep="\n  ", flush=True)
        await rounds.close()
    return found


def run_all(plans: deque[Plan]) -> Findings:
    """All rounds; what went wrong on one installation is no matter for the next."""
    found = Findings()
    while plans:
        with TemporaryDirectory(prefix="hubernate-chaos-") as name:
            folder = Path(name)
            folder.chmod(0o711)
            with own_disk(folder / "state" / "cache"):
                found.add(asyncio.run(run(folder, plans)))
    return found


def main() -> int:
    """Inside: 0 if everything held."""
    parser = argparse.ArgumentParser(prog="tests.chaos", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--first", type=int, default=0, help="number of the first round")
    parser.add_argument("--cycles", type=int, default=CYCLES, help="suspends before it is quiet")
    wishes = parser.parse_args()
    if wishes.seed is None:
        wishes.seed = SystemRandom().randrange(2**32)
    print(f"seed {wishes.seed}", flush=True)
    numbers = range(wishes.first, wishes.first + wishes.rounds)
    found = run_all(deque(plan(wishes.seed, number, cycles=wishes.cycles) for number in numbers))
    print(json.dumps({"rounds": wishes.rounds, **found.counts(), "seed": wishes.seed}))
    return 1 if found else 0


if __name__ == "__main__":
    enclosed(main)
