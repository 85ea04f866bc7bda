"""Every hour what an administrator would type: `hubernate snapshots gc`.

A short-lived process of its own: it takes no memory in between, a failure is one line in a log, and
what runs by itself is what can be tried by hand.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

from hub_config.settings import LocalSettings

log = logging.getLogger(__name__)

FIRST_SECONDS: Final = 300.0
"""After the start sessions come back first."""

INTERVAL_SECONDS: Final = 3600.0
END_SECONDS: Final = 10.0


@dataclass(slots=True)
class Housekeeping:
    """Runs one command again and again until it is cancelled. `sleep` waits that many seconds."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    log_file: Path
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    runs: int = field(default=0)

    async def run(self) -> None:
        """Wait, run, wait, ... without end. A run that fails is logged."""
        await self.sleep(FIRST_SECONDS)
        while True:
            try:
                code = await self.once()
                if code:
                    log.warning("%s ended with %d; see %s", self.argv[-2:], code, self.log_file)
            except OSError as error:
                log.warning("%s cannot be started: %s", self.argv[0], error)
            await self.sleep(INTERVAL_SECONDS * random.uniform(0.9, 1.1))  # noqa: S311 - no secret

    async def once(self) -> int:
        """One run; its exit code. Cancelled, it ends the process first."""
        self.runs += 1
        descriptor = os.open(self.log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, f"{datetime.now():%Y-%m-%d %H:%M:%S}\n".encode())
            process = await asyncio.create_subprocess_exec(
                *self.argv,
                env=dict(self.environment),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=descriptor,
                stderr=descriptor,
                start_new_session=True,
            )
        finally:
            os.close(descriptor)
        try:
            return await process.wait()
        finally:
            if process.returncode is None:
                await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), END_SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()


def collecting(settings: LocalSettings, environment: Mapping[str, str]) -> Housekeeping:
    """Retention and garbage collection of this installation."""
    folder = settings.folder()
    python = str(folder.venv / "bin/python")
    argv = (python, "-P", "-m", "hub_config.cli", "snapshots", "gc")
    return Housekeeping(argv, environment, folder.logs / "retention.log")
