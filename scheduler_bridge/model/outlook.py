"""What somebody who waits, or means to submit, is told of the future."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Estimate:
    """It starts between `earliest` and `latest` with `probability`; times are UNIX seconds. Both are
    None where nothing honest can be said, and `reason` then tells why.

    `basis` names what it rests on: `history` (how long others waited), `reservation` (a start at the
    latest), `freed` (GPUs that are being freed). `compared` is how many estimates of this basis could
    be compared with what happened, `measured` the share of those that came true (None: none yet)."""

    given_at: float
    earliest: float | None = None
    latest: float | None = None
    probability: float = 0.0
    basis: str = ""
    reason: str = ""
    measured: float | None = None
    compared: int = 0

    @property
    def is_known(self) -> bool:
        """Whether there is an interval."""
        return self.latest is not None


@dataclass(frozen=True, slots=True)
class Change:
    """The smallest change of its kind with which the work would start now, or of kind `moment` when it
    starts as it is. `values` are the fields of the spec as they would be; `makes_room` tells that
    others would be asked to yield first. `at` is UNIX seconds, `last` the workloads that are in the
    way until then."""

    kind: str
    text: str
    values: dict[str, Any] = field(default_factory=dict)
    makes_room: bool = False
    at: float | None = None
    last: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Variant:
    """A spec that is asked about with other values; None leaves the spec's own."""

    min_runtime_seconds: float | None = None
    gpus: int | None = None
    nodes: int | None = None
    team: str | None = None
    clusters: tuple[str, ...] | None = None
    gpu_models: tuple[str, ...] | None = None
