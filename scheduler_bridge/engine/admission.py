"""What is refused at once: requests that break a limit or can never fit."""

from __future__ import annotations

import re
from typing import Final

from scheduler_bridge.engine.fleet import Fleet
from scheduler_bridge.errors import Refused
from scheduler_bridge.model.phases import Kind
from scheduler_bridge.model.workload import Priority, WorkloadSpec
from scheduler_bridge.policy.values import Rules, TeamRules
from scheduler_bridge.policy.wording import gpus

_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LENGTHS: Final = {
    "name": 128,
    "user": 255,
    "team": 128,
    "hub": 128,
    "server": 255,
    "profile": 128,
    "folder": 4096,
}
_MAX_COMMAND_BYTES: Final = 128 * 1024
_MAX_ENVIRONMENT: Final = 256
_MAX_GRACE_SECONDS: Final = 3600.0
_MAX_RUNTIME_SECONDS: Final = 30 * 86400.0
MAX_KEY: Final = 512


def check(spec: WorkloadSpec, key: str, fleet: Fleet, rules: Rules) -> None:
    """Raise `Refused`, naming field, limit and remedy."""
    _check_texts(spec, key)
    _check_numbers(spec)
    _check_where(spec, fleet)
    if spec.kind is Kind.JOB:
        _check_job(spec)
    _check_size(spec, fleet)
    _check_limits(spec, rules)


def _check_texts(spec: WorkloadSpec, key: str) -> None:
    if not 1 <= len(key) <= MAX_KEY:
        raise Refused(f"key: must have 1 to {MAX_KEY} characters; it has {len(key)}.")
    for field, limit in _LENGTHS.items():
        value = getattr(spec, field)
        if len(value) > limit:
            raise Refused(f"{field}: at most {limit} characters; it has {len(value)}.")
        if not value.isprintable():
            raise Refused(f"{field}: must not contain line breaks or control characters.")
    for field in ("name", "user", "team"):
        if not getattr(spec, field).strip():
            raise Refused(f"{field}: must not be empty.")


def _check_numbers(spec: WorkloadSpec) -> None:
    for field, low, high in (
        ("gpus", 0, None),
        ("nodes", 1, None),
        ("min_runtime_seconds", 0, _MAX_RUNTIME_SECONDS),
        ("grace_seconds", 0, _MAX_GRACE_SECONDS),
        ("max_runtime_seconds", 1, _MAX_RUNTIME_SECONDS),
    ):
        value = getattr(spec, field)
        if value is None:
            continue
        # written so that NaN fails
        if not value >= low or (high is not None and not value <= high):
            limits = f"{low} or more" if high is None else f"between {low} and {high:g}"
            raise Refused(f"{field}: must be {limits}; it is {value}.")


def _check_where(spec: WorkloadSpec, fleet: Fleet) -> None:
    for field, asked, there in (
        ("gpu_models", spec.gpu_models, fleet.models),
        ("clusters", spec.clusters, fleet.clusters),
    ):
        if unknown := [name for name in asked if name not in there]:
            known = ", ".join(sorted(there)) or "none"
            raise Refused(f"{field}: {unknown[0]!r} is not known; there is: {known}.")
    if spec.kind is Kind.SESSION and spec.max_runtime_seconds is not None:
        raise Refused(
            "max_runtime_seconds: a session has none; it is suspended when nobody uses it.",
            remedy="Leave it out.",
        )
    longest = spec.max_runtime_seconds
    if longest is not None and spec.min_runtime_seconds > longest:
        raise Refused(
            f"min_runtime_seconds: {spec.min_runtime_seconds:g} is more than the {longest:g} that it "
            "may run at all.",
            remedy=f"Ask for at most {longest:g}.",
        )


def _check_job(spec: WorkloadSpec) -> None:
    if not spec.command or not spec.command[0]:
        raise Refused("command: a job needs one.", remedy="Put it after --.")
    size = sum(len(part.encode()) + 1 for part in spec.command)
    if size > _MAX_COMMAND_BYTES:
        raise Refused(f"command: at most {_MAX_COMMAND_BYTES} bytes; it has {size}.")
    if len(spec.environment) > _MAX_ENVIRONMENT:
        raise Refused(
            f"environment: at most {_MAX_ENVIRONMENT} variables; it has {len(spec.environment)}."
        )
    for name in spec.environment:
        if not _VARIABLE.fullmatch(name):
            raise Refused(f"environment: {name!r} cannot be the name of a variable.")
    if any("\0" in text for text in (*spec.command, *spec.environment.values())):
        raise Refused("command: must not contain NUL characters.")


def _check_size(spec: WorkloadSpec, fleet: Fleet) -> None:
    machines = len(fleet.sizes)
    if spec.nodes > machines:
        raise Refused(
            f"nodes: it asks for {spec.nodes}, and the fleet has {machines}.",
            remedy=f"Ask for at most {machines}.",
        )
    largest = fleet.sizes[spec.nodes - 1] if machines else 0
    if spec.gpus > largest:
        has = "no GPU" if largest == 0 else f"at most {gpus(largest)}"
        raise Refused(
            f"gpus: it asks for {spec.gpus}, and a machine has {has}.",
            remedy="Choose a profile without GPU."
            if not largest
            else f"Ask for {largest} or less.",
        )


def _check_limits(spec: WorkloadSpec, rules: Rules) -> None:
    """What its team may hold at once, in all and at that priority."""
    wanted = spec.gpus * spec.nodes
    limit = rules.limit_of(spec.team)
    if limit is not None and wanted > limit:
        raise Refused(
            f"gpus: it asks for {wanted}, and team {spec.team} may hold {gpus(limit)} at once.",
            remedy=f"Ask for {limit} or less, or ask an administrator for a higher limit.",
        )
    budget = rules.teams.get(spec.team, TeamRules())
    for priority, most in sorted(budget.priority_limits.items()):
        if spec.priority >= priority and wanted > most:
            name = Priority(priority).name.lower()
            raise Refused(
                f"gpus: it asks for {wanted}, and team {spec.team} may hold {gpus(most)} at once "
                f"for work of priority {name} or above.",
                remedy=f"Ask for {most} or less, or for less than priority {name}.",
            )
