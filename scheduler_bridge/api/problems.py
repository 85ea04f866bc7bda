"""Exceptions as JSON answers."""

from __future__ import annotations

import logging

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from scheduler_bridge.api.auth import Unauthenticated
from scheduler_bridge.errors import (
    Conflict,
    NotAllowed,
    NotFound,
    Refused,
    SchedulerError,
    TooOften,
    Unavailable,
)
from scheduler_bridge.store.base import StoreError
from scheduler_bridge.wire import PROBLEM, Problem

_log = logging.getLogger(__name__)

_STATUS: dict[type[SchedulerError], int] = {
    Unauthenticated: 401,
    NotAllowed: 403,
    NotFound: 404,
    Conflict: 409,
    Refused: 422,
    TooOften: 429,
    Unavailable: 503,
}


def answer(status: int, problem: Problem) -> Response:
    """The problem as a response."""
    return Response(PROBLEM.dump_json(problem), status, media_type="application/json")


def install(app: FastAPI) -> None:
    """Every error that leaves the service is a `Problem`."""

    @app.exception_handler(SchedulerError)
    async def _ours(_request: Request, error: SchedulerError) -> Response:
        status = _STATUS.get(type(error), 500)
        response = answer(status, Problem(error.code, error.message, error.remedy))
        if isinstance(error, TooOften):
            response.headers["Retry-After"] = str(error.retry_after)
        return response

    @app.exception_handler(StoreError)
    async def _no_store(request: Request, error: StoreError) -> Response:
        _log.warning("%s %s: %s", request.method, request.url.path, error)
        words = "The scheduler's database does not answer."
        return answer(503, Problem(Unavailable.code, words, "Try again soon."))

    @app.exception_handler(RequestValidationError)
    async def _invalid(_request: Request, error: RequestValidationError) -> Response:
        return answer(422, Problem(Refused.code, _sentence(error)))

    @app.exception_handler(HTTPException)
    async def _http(_request: Request, error: HTTPException) -> Response:
        code = {404: NotFound.code, 413: Refused.code}.get(error.status_code, "http_error")
        return answer(error.status_code, Problem(code, str(error.detail)))

    @app.exception_handler(Exception)
    async def _bug(request: Request, error: Exception) -> Response:
        _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return answer(500, Problem("internal", "The scheduler failed; its log tells why."))


def _sentence(error: RequestValidationError) -> str:
    """Field and limit of each mistake. Never the input: it may hold a secret."""
    mistakes = []
    for mistake in error.errors()[:5]:
        path = [str(part) for part in mistake["loc"] if part not in ("body", "query")]
        mistakes.append(f"{'.'.join(path) or 'body'}: {mistake['msg']}")
    return "; ".join(mistakes) + "."
