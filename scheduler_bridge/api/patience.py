"""Answers that come late: not for those who have hung up."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request

Answer = TypeVar("Answer")


class HungUp(Exception):
    """Nobody waits for the answer any more."""


async def unless_gone(request: Request, work: Coroutine[Any, Any, Answer]) -> Answer:
    """The result of `work`, which is cancelled as soon as the client hangs up: a long poll of a
    program that died must not look as if somebody still waited. Raises `HungUp`."""
    doing = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_hang_up(request))
    try:
        await asyncio.wait({doing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise HungUp
        return doing.result()
    finally:
        for task in (doing, leaving):
            if not task.done():
                task.cancel()
        await asyncio.gather(doing, leaving, return_exceptions=True)


async def _hang_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
