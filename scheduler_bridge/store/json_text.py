"""Records as JSON that every database takes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isfinite
from typing import Any


def json_text(value: Any) -> str:
    """The value as JSON. Numbers that JSON lacks (infinite, NaN) become null: they come from outside
    in evidence and telemetry, where null means unknown."""
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value
