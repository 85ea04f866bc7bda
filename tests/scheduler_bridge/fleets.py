"""Short ways to say a fleet, a queue and what runs, for tables of planner cases."""

from __future__ import annotations

from typing import Any

from scheduler_bridge.model.phases import Kind
from scheduler_bridge.policy.values import FleetState, NodeState, Pending, Running


def fleet(
    *sizes: int, running: tuple[Running, ...] = (), earmarks: dict[str, str] | None = None
) -> FleetState:
    """Nodes n0, n1, … whose GPUs are called n0g0, n0g1, …"""
    nodes = tuple(
        NodeState(f"n{n}", tuple(f"n{n}g{g}" for g in range(size))) for n, size in enumerate(sizes)
    )
    holders = {gpu: item.id for item in running for gpu in item.gpus}
    return FleetState(nodes, holders, earmarks or {})


def pending(name: str, gpus: int = 1, **more: Any) -> Pending:
    """A queued workload; `since` defaults to 0."""
    values = {"team": "red", "nodes": 1, "priority": 1, "since": 0.0, **more}
    return Pending(name, gpus=gpus, **values)


def running(name: str, *gpus: str, **more: Any) -> Running:
    """A session that is not idle, unless told otherwise."""
    values = {"kind": Kind.SESSION, "team": "red", "priority": 1, "since": 0.0, **more}
    return Running(name, gpus=gpus, **values)


def idle(name: str, *gpus: str, since: float = 10.0, **more: Any) -> Running:
    """An idle session."""
    return running(name, *gpus, idle_since=since, **more)


def job(name: str, *gpus: str, **more: Any) -> Running:
    """A running job."""
    return running(name, *gpus, kind=Kind.JOB, **more)
