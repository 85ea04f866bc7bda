"""What the parts of one supervisor share."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scheduler_bridge.model.phases import Phase
from scheduler_bridge.model.workload import SnapshotRef
from snapshot.model import Blocker, Filling, NetworkSpec, Process, SandboxSpec
from spawner.supervisor import inside
from spawner.supervisor.board import Board
from spawner.supervisor.courier import Courier, Move
from spawner.supervisor.ear import Ear
from spawner.supervisor.fencing import Fence
from spawner.supervisor.heartbeat import Heartbeat
from spawner.supervisor.machine import Machine
from spawner.supervisor.order import SupervisorOrder
from spawner.supervisor.status import LOG_FILE, OUTPUT_FILE, Outcome
from spawner.supervisor.wishes import Wishes

_log = logging.getLogger(__name__)

FINAL_MOVE_SECONDS = 10.0
"""How long a supervisor waits for the scheduler to hear of the end, before it leaves its word in
`status.json`, where the scheduler's reconciler finds it."""


def sandbox_spec(order: SupervisorOrder, host_port: int) -> SandboxSpec:
    """The sandbox that an order describes. A job has no `inner_port`: nothing leads in."""
    return SandboxSpec(
        directory=Path(order.directory),
        identity=order.identity,
        inner_root=order.inner_root,
        argv=order.argv,
        environment=order.environment,
        folder=order.folder,
        binds=order.binds,
        devices=order.devices,
        network=NetworkSpec(
            host_port, order.inner_port if order.serve else 0, order.reachable_ports
        ),
        image=order.image,
        layer=order.layer,
    )


def halted_in(facts: dict[str, Any]) -> tuple[Process, ...]:
    """The processes that a status names as halted."""
    return tuple(Process(int(p["pid"]), int(p["started"])) for p in facts.get("halted") or ())


@dataclass(slots=True)
class Context:
    """The state of one supervisor. `process` and `spec` are set once the sandbox is up; `blockers`
    is the last inspection (None: none yet); with `filling`, memory of a resumed tree is to come."""

    order: SupervisorOrder
    machine: Machine
    board: Board
    wishes: Wishes
    courier: Courier
    fence: Fence
    heartbeat: Heartbeat
    ear: Ear
    process: Process | None = None
    spec: SandboxSpec | None = None
    filling: Filling | None = None
    blockers: tuple[Blocker, ...] | None = None
    now: Callable[[], float] = time.time
    final_move_seconds: float = FINAL_MOVE_SECONDS

    @property
    def directory(self) -> Path:
        """The supervisor's folder."""
        return Path(self.order.directory)

    @property
    def tree(self) -> Process:
        """The sandbox's first process. Raises `RuntimeError` before there is one."""
        if self.process is None:
            raise RuntimeError("the sandbox has no process yet")
        return self.process

    @property
    def sandbox(self) -> SandboxSpec:
        """The sandbox's description. Raises `RuntimeError` before there is one."""
        if self.spec is None:
            raise RuntimeError("the sandbox was not described yet")
        return self.spec

    def note(self, name: str, value: Any) -> None:
        """Put one fact into the status."""
        self.board.update(facts={**self.board.status.facts, name: value})

    def halted(self) -> tuple[Process, ...]:
        """What this supervisor's fence has halted."""
        return halted_in(self.board.status.facts)

    def enter(self, phase: Phase, cause: str, **status: Any) -> asyncio.Future[bool]:
        """Be in `phase` from now on: status file first, then the scheduler."""
        _log.info("phase %s: %s", phase, cause)
        self.board.update(phase=phase.value, **status)
        return self.courier.post(Move(phase, cause, {"log_path": self.log_path}))

    @property
    def log_path(self) -> str:
        """Where people look first: a job's output, a session's supervisor."""
        own = self.directory / (LOG_FILE if self.order.serve else f"run/{OUTPUT_FILE}")
        return str(own)

    async def finish(
        self,
        phase: Phase,
        outcome: Outcome,
        cause: str,
        *,
        snapshot: SnapshotRef | None = None,
        exit_code: int | None = None,
        error: str = "",
        remedy: str = "",
        **status: Any,
    ) -> Outcome:
        """The end: tell the scheduler (bounded), then write the outcome. The sandbox must be empty.

        `status.json` holds everything but the outcome before the scheduler is asked, so that a
        supervisor killed in between has left the truth.
        """
        self.heartbeat.expect_release()
        _log.info("ends as %s: %s", outcome, cause)
        facts = {**self.board.status.facts, "ending": outcome.value}
        if snapshot is not None:
            status |= {
                "snapshot": snapshot.key,
                "snapshot_bytes": snapshot.bytes,
                "snapshot_constraints": snapshot.constraints,
            }
        self.board.update(exit_code=exit_code, error=error, remedy=remedy, facts=facts, **status)
        evidence = {"error": error, "remedy": remedy} if error else {}
        move = Move(phase, cause, evidence, snapshot, exit_code)
        accepted = await self.courier.deliver(move, within=self.final_move_seconds)
        if not accepted:
            _log.error("the scheduler did not take the move to %s; it is in the status", phase)
        facts = {**facts, "scheduler_told": accepted}
        self.board.update(phase=phase.value, outcome=outcome, host_port=0, facts=facts)
        return outcome

    async def connect(self) -> None:
        """Join the network unless it is joined; the host port that was given is remembered, and
        asked for again later."""
        self.answers_on(await self.machine.ensure_connected(self.tree, self.sandbox))

    def answers_on(self, port: int) -> None:
        """The sandbox is reached on this host port now."""
        network = replace(self.sandbox.network, host_port=port)
        self.spec = replace(self.sandbox, network=network)

    def describe_gpus(self) -> None:
        """Leave the lease's GPUs where programs inside can read them (`gpus.json`)."""
        value = {"gpus": self.order.facts.get("gpus", []), "epoch": self.order.epoch}
        inside.write_json(self.sandbox, inside.GPUS_FILE, value)
