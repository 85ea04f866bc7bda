"""What a policy would do with the sessions there are now (pure but for what it is given).

A preview sees one sample, so it cannot measure CPU use: there it relies on what the running
reclaimer has found, and says so where that is the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from reclaimer.idleness import CPU, Assessment, Busy, IdleSince, Unknown, Watch, assess
from reclaimer.policy import Keep, Policy, Suspend, Verdict, Warn, judge
from reclaimer.signals import read_sample, session_of
from scheduler_bridge.model.phases import Kind, Phase
from scheduler_bridge.model.workload import Pause, Workload


@dataclass(frozen=True, slots=True)
class Forecast:
    """One session: which rule is for it, what it would do, when (UNIX seconds), and why."""

    workload: Workload
    rule: str
    action: str
    at: float | None
    why: str
    evidence: tuple[str, ...]


def preview(
    policy: Policy, workloads: Iterable[Workload], now: float, pauses: Sequence[Pause] = ()
) -> tuple[Forecast, ...]:
    """Judge every running session as if the policy had just come into force."""
    running = (w for w in workloads if w.spec.kind is Kind.SESSION and w.phase is Phase.RUNNING)
    return tuple(_forecast(policy, workload, now, pauses) for workload in running)


def _forecast(policy: Policy, workload: Workload, now: float, pauses: Sequence[Pause]) -> Forecast:
    session = replace(session_of(workload), announced=None)
    found = _assess(workload, now, policy.watch)
    rule = policy.rule_for(session)
    action, at, why = _describe(judge(policy, session, found, now, pauses))
    evidence = () if isinstance(found, Unknown) else found.evidence
    return Forecast(workload, rule.name if rule else "", action, at, why, evidence)


def _assess(workload: Workload, now: float, watch: Watch) -> Assessment:
    sample = read_sample(workload)
    if sample is None:
        return Unknown("no telemetry has arrived")
    since = workload.idleness.since
    found = assess(
        (sample,),
        now,
        running_since=workload.phase_since,
        active_until=since or 0.0,
        watch=replace(watch, counted=watch.counted - {CPU}),
    )
    uses_cpu = workload.idleness.reason.startswith("it is in use")
    if isinstance(found, IdleSince) and since is None and uses_cpu and CPU in watch.counted:
        return Busy("the reclaimer sees it at work", found.evidence)
    return found


def _describe(verdict: Verdict) -> tuple[str, float | None, str]:
    match verdict:
        case Keep(why=why, suspend_at=None):
            return "keep", None, why
        case Keep(why=why, suspend_at=at) | Warn(why=why, at=at) | Suspend(why=why, at=at):
            return "suspend", at, why
