"""What this machine is, for sessions that want to come back: processor, kernel, CRIU, GPU driver.

Who knows how snapshots describe machines tells it, as a program that prints one JSON object. The GPU
driver is asked directly. What nobody tells is left out, and then not judged.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from typing import Final

from scheduler_bridge.agent.nvml import driver_version

_log = logging.getLogger(__name__)

TELL_SECONDS: Final = 30.0
_LONGEST: Final = 64 * 1024


async def read_facts(argv: Sequence[str]) -> dict[str, str] | None:
    """The facts now; None if they could not be learned this time: keep the ones before."""
    told = await _told_by(argv) if argv else {}
    if told is None:
        return None
    version = await asyncio.to_thread(driver_version)
    return told | ({"gpu_driver": version} if version else {})


async def _told_by(argv: Sequence[str]) -> dict[str, str] | None:
    try:
        program = await asyncio.create_subprocess_exec(
            *argv, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE
        )
    except OSError as error:
        _log.warning("%s cannot be started: %s", argv[0], error)
        return None
    try:
        async with asyncio.timeout(TELL_SECONDS):
            told, _ = await program.communicate()
    except TimeoutError:
        _log.warning("%s did not tell what this machine is within %g s", argv[0], TELL_SECONDS)
        return None
    finally:
        if program.returncode is None:
            program.kill()
            await program.wait()
    if program.returncode:
        _log.warning("%s ended with %d; see above", argv[0], program.returncode)
        return None
    return _parse(told)


def _parse(told: bytes) -> dict[str, str] | None:
    try:
        facts = json.loads(told[:_LONGEST])
    except ValueError:
        facts = None
    if not isinstance(facts, dict) or not all(isinstance(it, str) for it in facts.values()):
        _log.warning("what this machine is was not told as a JSON object of texts")
        return None
    return facts
