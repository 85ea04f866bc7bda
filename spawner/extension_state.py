"""What the session's supervisor left for the session's pages in `state.json`.

The file is in a folder of the user's: what is not as it should be counts as not known.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

STATE_FILE: Final = "state.json"
LARGEST_FILE: Final = 1 << 20


def read_state(path: Path) -> dict[str, Any]:
    """`filling` (null unless memory is arriving) and `suspend`, as `supervisor.telling` describes
    them."""
    try:
        with open(path, "rb") as handle:
            value = json.loads(handle.read(LARGEST_FILE))
    except (OSError, ValueError, RecursionError):
        value = None
    found = value if isinstance(value, dict) else {}
    return {"filling": _filling(found.get("filling")), "suspend": _suspend(found.get("suspend"))}


def _filling(value: object) -> dict[str, Any] | None:
    if not isinstance(value, dict):
        return None
    percent = value.get("percent")
    known = isinstance(percent, int) and 0 <= percent <= 100
    return {"percent": percent if known else None, "trouble": _text(value.get("trouble"))}


def _suspend(value: object) -> dict[str, Any]:
    found = value if isinstance(value, dict) else {}
    can = found.get("can")
    return {
        "can": can if isinstance(can, bool) else None,
        "sentence": _text(found.get("sentence")),
    }


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
