"""Who has which GPU: by the scheduler, and by what each sandbox can open."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from snapshot import proc

EVERY: Final = 0.1


@dataclass(frozen=True, slots=True)
class Open:
    """One GPU that a sandbox can open; `sandbox` names its PID namespace."""

    gpu: str
    sandbox: str
    pid: int


def leaked(holders: Mapping[str, str], living: Collection[str]) -> tuple[str, ...]:
    """GPUs that are leased to a workload without living processes (pure)."""
    return tuple(gpu for gpu, workload in sorted(holders.items()) if workload not in living)


def shared(seen: Iterable[Open]) -> tuple[tuple[Open, Open], ...]:
    """GPUs that two sandboxes can open: for each, one process of either (pure)."""
    first: dict[str, Open] = {}
    found = []
    for each in seen:
        other = first.setdefault(each.gpu, each)
        if other.sandbox != each.sandbox:
            found.append((other, each))
    return tuple(found)


def look() -> tuple[Open, ...]:
    """What all sandboxes can open now."""
    own = proc.pid_namespace(1)
    found = []
    for pid in proc.all_pids():
        stat = proc.stat(pid)
        sandbox = proc.pid_namespace(pid)
        if stat is None or stat.state in proc.GONE_STATES or sandbox in ("", own):
            continue
        with contextlib.suppress(OSError, ValueError):
            for device in Path(f"/proc/{pid}/root/.devices").glob("vgpu*"):
                gpu = json.loads(device.read_text().splitlines()[0])["uuid"]
                found.append(Open(gpu, sandbox, pid))
    return tuple(found)


def confirmed(pair: tuple[Open, Open]) -> bool:
    """Whether both still live: one may have ended before the other was looked at."""
    stats = [proc.stat(each.pid) for each in pair]
    return all(stat is not None and stat.state not in proc.GONE_STATES for stat in stats)


@dataclass(slots=True)
class Watch:
    """Looks all the time. `found` are GPUs that two sandboxes had at once."""

    found: set[str] = field(default_factory=set)
    seen: set[str] = field(default_factory=set)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.to_thread(self._look)
            await asyncio.sleep(EVERY)

    def _look(self) -> None:
        now = look()
        self.seen |= {each.gpu for each in now}
        for pair in shared(now):
            if confirmed(pair):
                self.found.add(f"{pair[0].gpu}: {pair[0].pid} and {pair[1].pid}")

    def verdict(self) -> list[str]:
        """What was wrong. A watch that saw no GPU at all has proven nothing."""
        return sorted(self.found) if self.seen else ["no sandbox was seen to have a GPU"]
