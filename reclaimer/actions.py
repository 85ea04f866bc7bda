"""Carries verdicts to the scheduler, as desired state and as what people are shown.

Everything is idempotent: a pass that was interrupted is simply done again. While the scheduler is
away nothing is known and nothing is done.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from reclaimer.idleness import Assessment, Busy
from reclaimer.policy import Keep, Policy, Suspend, Verdict, Warn, judge
from reclaimer.policy_file import PolicyFile
from reclaimer.signals import Recorder, read_sample, session_of
from scheduler_bridge.errors import Conflict, NotAllowed, NotFound, Refused
from scheduler_bridge.model.phases import Desired, Kind, Phase
from scheduler_bridge.model.workload import Idleness, Pause, Workload
from scheduler_bridge.plugin import SchedulerPlugin

ACTOR: Final = "reclaimer"
NO_POLICY: Final = "the reclaim policy has a mistake; nobody is suspended until it is corrected"
WITHDRAWN: Final = "somebody used it again before the suspend began"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Judged:
    """One session with what was found and decided."""

    workload: Workload
    assessment: Assessment
    verdict: Verdict


@dataclass(slots=True)
class Reclaimer:
    """One pass after another over all sessions. Holds no state that a restart would miss."""

    scheduler: SchedulerPlugin
    policy_file: PolicyFile
    recorders: dict[str, Recorder] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)
    _last_error: str = ""

    async def run_once(self, now: float) -> tuple[Judged, ...]:
        """Look at every session, decide, act. Raises what the scheduler raises."""
        policy = self._policy()
        sessions = await self.scheduler.list(kind=Kind.SESSION)
        pauses = (await self.scheduler.fleet()).pauses
        self._forget_others(sessions)
        judged = tuple(
            self._look_at(workload, policy, pauses, now)
            for workload in sessions
            if workload.phase is Phase.RUNNING
        )
        for one in judged:
            await self._act(one)
        return judged

    def _policy(self) -> Policy | None:
        policy = self.policy_file.current()
        problem = str(self.policy_file.error or "")
        if problem and problem != self._last_error:
            kept = "the policy before it stays in force" if policy else NO_POLICY
            log.error("policy not taken up (%s):\n%s", kept, problem)
        self._last_error = problem
        return policy

    def _forget_others(self, sessions: Sequence[Workload]) -> None:
        """Only a session that runs has a past that matters."""
        running = {workload.id for workload in sessions if workload.phase is Phase.RUNNING}
        self.recorders = {key: r for key, r in self.recorders.items() if key in running}
        self.asked &= running

    def _look_at(
        self, workload: Workload, policy: Policy | None, pauses: Sequence[Pause], now: float
    ) -> Judged:
        recorder = self.recorders.get(workload.id)
        if recorder is None:
            recorder = self.recorders[workload.id] = Recorder.at_first_sight(workload, now)
        recorder.note(read_sample(workload))
        if workload.id in self.asked and workload.desired is Desired.RUNNING:
            # Somebody took our wish back; that is as good as a key pressed.
            self.asked.discard(workload.id)
            recorder.active_until = max(recorder.active_until, now)
        rules = policy or Policy(rules=())
        assessment = recorder.assess(now, workload.phase_since, rules.watch)
        verdict: Verdict = Keep(NO_POLICY)
        if policy is not None:
            verdict = judge(policy, session_of(workload), assessment, now, pauses)
        return Judged(workload, assessment, verdict)

    async def _act(self, one: Judged) -> None:
        """Publish, then ask. What is refused for one session does not keep the others waiting; most
        often it ended or moved on meanwhile."""
        try:
            await self._publish(one)
            await self._ask(one)
        except (Conflict, NotFound) as error:
            log.info("session %s has moved on: %s", one.workload.id, error)
        except (NotAllowed, Refused) as error:
            log.warning("nothing can be done about session %s: %s", one.workload.id, error)

    async def _publish(self, one: Judged) -> None:
        shown = published(one.verdict)
        if shown != one.workload.idleness:
            await self.scheduler.set_idleness(one.workload.id, shown)

    async def _ask(self, one: Judged) -> None:
        workload = one.workload
        if isinstance(one.verdict, Suspend) and workload.desired is Desired.RUNNING:
            log.info("suspending %s of %s: %s", workload.id, workload.spec.user, one.verdict.why)
            self.asked.add(workload.id)
            await self.scheduler.desire(
                workload.id, Desired.SUSPENDED, actor=ACTOR, reason=one.verdict.why
            )
        elif self._should_withdraw(one):
            self.asked.discard(workload.id)
            await self.scheduler.desire(workload.id, Desired.RUNNING, actor=ACTOR, reason=WITHDRAWN)

    @staticmethod
    def _should_withdraw(one: Judged) -> bool:
        """Our own wish, not begun yet, and the session is known to be in use again."""
        workload = one.workload
        ours = workload.desired is Desired.SUSPENDED and workload.desired_by == ACTOR
        return ours and isinstance(one.assessment, Busy)


def published(verdict: Verdict) -> Idleness:
    """What people and other programs are shown of a verdict."""
    match verdict:
        case Keep(why=why, since=since, suspend_at=at):
            return Idleness(since=since, suspend_at=at, reason=why)
        case Warn(at=at, why=why, since=since) | Suspend(at=at, why=why, since=since):
            return Idleness(since=since, suspend_at=at, reason=why)
