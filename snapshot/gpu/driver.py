"""The NVIDIA driver of this machine, reached through a helper process with deadlines.

A driver call may never return. The helper that waits for it is then killed, and the next request
starts another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pydantic import TypeAdapter

from snapshot.errors import SnapshotError
from snapshot.gpu.model import Survey
from snapshot.programs import CLEAN_ENVIRONMENT

ASK_SECONDS = 60.0
"""For a question. The first one initialises CUDA: seconds on a machine with many GPUs."""

MOVE_SECONDS = 300.0
"""For moving memory: an H100's 80 GB take about 15 s each way."""

KILL_SECONDS = 5.0

LOCK_MILLISECONDS = 10_000
"""How long work that a program has submitted may still run before its state is taken."""

_SOURCE = str(Path(__file__).resolve().parents[2])
_START = (
    f"import sys; sys.path.insert(0, {_SOURCE!r}); from snapshot.gpu.helper import main; main()"
)
_INVALID_VALUE, _NOT_INITIALIZED = 1, 3
_SURVEY = TypeAdapter(Survey)
_WORDS = {
    "state": "telling a process's state",
    "thread": "looking for CUDA in a process",
    "lock": "waiting for its GPU work to end",
    "checkpoint": "moving its GPU memory out",
    "restore": "moving its GPU memory back",
    "unlock": "letting it go on",
}


class State(IntEnum):
    """CUprocessState."""

    RUNNING = 0
    LOCKED = 1
    CHECKPOINTED = 2
    FAILED = 3
    CHECKPOINTING = 4
    RESTORING = 5


class GpuError(SnapshotError):
    """The driver refused, or did not answer in time. The message is a sentence for people."""


class Driver:
    """Use as `async with`. `libraries` is a folder to look for NVIDIA's libraries in first.

    No process is started before the first request. Requests are made one after the other, and one
    whose caller was cancelled is still waited for before the next.
    """

    def __init__(self, libraries: str = "", *, move_seconds: float = MOVE_SECONDS) -> None:
        self._libraries = libraries
        self._move_seconds = move_seconds
        self._helper: asyncio.subprocess.Process | None = None
        self._one_at_a_time = asyncio.Lock()

    async def survey(self, minors: Sequence[int]) -> Survey:
        """These GPUs, and who computes on them."""
        reply = await self._request({"do": "survey", "minors": list(minors)}, ASK_SECONDS)
        return _SURVEY.validate_python(reply["survey"])

    async def has_cuda(self, pid: int) -> bool:
        """True if the process has CUDA state."""
        reply = await self._request({"do": "thread", "pid": pid}, ASK_SECONDS)
        if reply["code"] in (_INVALID_VALUE, _NOT_INITIALIZED):
            return False
        return bool(_value(reply, "thread", pid))

    async def state(self, pid: int) -> int:
        """A member of `State`, or a number that is newer than this program."""
        reply = await self._request({"do": "state", "pid": pid}, ASK_SECONDS)
        return _value(reply, "state", pid)

    async def lock(self, pid: int) -> None:
        """RUNNING to LOCKED."""
        await self._act("lock", pid, timeout_ms=LOCK_MILLISECONDS)

    async def checkpoint(self, pid: int) -> None:
        """LOCKED to CHECKPOINTED: no GPU is used any more."""
        await self._act("checkpoint", pid)

    async def restore(self, pid: int, pairs: Sequence[tuple[str, str]]) -> None:
        """CHECKPOINTED to LOCKED."""
        await self._act("restore", pid, pairs=list(pairs))

    async def unlock(self, pid: int) -> None:
        """LOCKED to RUNNING."""
        await self._act("unlock", pid)

    async def _act(self, name: str, pid: int, **arguments: Any) -> None:
        seconds = self._move_seconds
        reply = await self._request({"do": name, "pid": pid, **arguments}, seconds)
        _value(reply, name, pid)

    async def _request(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        exchange = asyncio.ensure_future(self._exchange(request, seconds))
        exchange.add_done_callback(_look_at)
        reply = await asyncio.shield(exchange)
        if "error" in reply:
            raise GpuError(str(reply["error"]))
        return reply

    async def _exchange(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        async with self._one_at_a_time:
            try:
                async with asyncio.timeout(seconds):
                    helper = await self._started()
                    assert helper.stdin and helper.stdout  # noqa: S101 - both are pipes
                    helper.stdin.write(json.dumps(request).encode() + b"\n")
                    await helper.stdin.drain()
                    line = await helper.stdout.readline()
            except TimeoutError as error:
                await self._kill()
                what = f"The NVIDIA driver did not answer within {seconds:.0f} s"
                raise GpuError(f"{what} ({_WORDS.get(request['do'], 'a question')}).") from error
            except ConnectionError:
                line = b""
            except OSError as error:
                raise GpuError(
                    f"The helper for the NVIDIA driver does not start: {error}"
                ) from error
            if not line:
                await self._kill()
                raise GpuError("The NVIDIA driver's library ended the helper that called it.")
            reply: dict[str, Any] = json.loads(line)
            return reply

    async def _started(self) -> asyncio.subprocess.Process:
        if self._helper is None:
            environment = dict(CLEAN_ENVIRONMENT)
            # In containers the driver's libraries are often found by this alone.
            if path := self._libraries or os.environ.get("LD_LIBRARY_PATH"):
                environment["LD_LIBRARY_PATH"] = path
            self._helper = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-c", _START),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env=environment,
                cwd=os.sep,
                start_new_session=True,
            )
        return self._helper

    async def _kill(self) -> None:
        helper, self._helper = self._helper, None
        if helper is not None:
            with contextlib.suppress(ProcessLookupError):
                helper.kill()
            # One that the kernel holds inside the driver dies when that lets it go.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(KILL_SECONDS):
                    await helper.wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._kill()


def _value(reply: dict[str, Any], name: str, pid: int) -> int:
    if reply["code"] != 0:
        raise GpuError(f"The NVIDIA driver failed {_WORDS[name]} (PID {pid}): {reply['name']}.")
    return int(reply["value"])


def _look_at(done: asyncio.Future[Any]) -> None:
    """Note the outcome of an exchange whose caller may be gone, so that asyncio is content."""
    if not done.cancelled():
        done.exception()
