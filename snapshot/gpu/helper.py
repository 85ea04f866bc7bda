"""The process that talks to the NVIDIA driver: one JSON request a line, one JSON reply a line.

It ends with its standard input. `{"do": NAME, ...}` names a call of `cuda.Cuda`, or `survey`; the
reply is `{"code": CUresult, "name": TEXT, "value": NUMBER}`, `{"survey": {...}}`, or
`{"error": SENTENCE}` where no call could be made.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

from snapshot.gpu.cuda import LIBRARY, Cuda


class _NoDriverError(Exception):
    """No call can be made here; the message is a sentence."""


class Helper:
    """Answers requests; the libraries are loaded with the first that needs them."""

    def __init__(self) -> None:
        self._cuda: Cuda | None = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The reply to one request."""
        try:
            if request["do"] == "survey":
                return {"survey": _survey(request["minors"])}
            return self._call(request)
        except _NoDriverError as error:
            return {"error": str(error)}

    def _call(self, request: dict[str, Any]) -> dict[str, Any]:
        cuda = self._library()
        pid = int(request["pid"])
        calls: dict[str, Callable[[], tuple[int, int]]] = {
            "state": lambda: cuda.state(pid),
            "thread": lambda: cuda.thread(pid),
            "lock": lambda: cuda.lock(pid, int(request["timeout_ms"])),
            "checkpoint": lambda: cuda.checkpoint(pid),
            "restore": lambda: cuda.restore(pid, request["pairs"]),
            "unlock": lambda: cuda.unlock(pid),
        }
        code, value = calls[request["do"]]()
        return {"code": code, "name": cuda.error_name(code) if code else "", "value": value}

    def _library(self) -> Cuda:
        if self._cuda is None:
            try:
                cuda = Cuda()
            except OSError as error:
                raise _NoDriverError(f"{LIBRARY} cannot be loaded: {error}.") from error
            except AttributeError as error:
                raise _NoDriverError("The NVIDIA driver is too old to save GPU memory.") from error
            if code := cuda.initialise():
                raise _NoDriverError(f"CUDA does not start here: {cuda.error_name(code)}.")
            self._cuda = cuda
        return self._cuda


def _survey(minors: list[int]) -> dict[str, Any]:
    import pynvml

    from snapshot.gpu import nvml

    try:
        return nvml.survey(minors)
    except pynvml.NVMLError as error:
        raise _NoDriverError(f"The NVIDIA driver does not answer: {error}.") from error
    except LookupError as error:
        raise _NoDriverError(f"The NVIDIA driver does not list GPU /dev/nvidia{error}.") from error


def main() -> None:
    """Serve until standard input ends."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints is no reply
    helper = Helper()
    for line in sys.stdin:
        replies.write(json.dumps(helper.answer(json.loads(line))) + "\n")
        replies.flush()
