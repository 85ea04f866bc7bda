"""How the scheduler logs: one JSON object per line, no secrets."""

from __future__ import annotations

import json
import logging
import sys
from typing import cast


class JsonLines(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line)


def configure_logging(*, as_json: bool, level: int | str) -> None:
    """Logs on standard error. Requests' headers and bodies are never logged."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonLines() if as_json else logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    )
    logging.basicConfig(level=min(_number(level), logging.INFO), handlers=[handler], force=True)
    # httpx logs every request's URL; the others tell what no operator asks
    for name in ("httpx", "httpcore", "alembic.runtime.plugins", "uvicorn.error"):
        logging.getLogger(name).setLevel(logging.WARNING)


def _number(level: int | str) -> int:
    return level if isinstance(level, int) else cast("int", logging.getLevelName(level))
