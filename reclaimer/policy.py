"""Rules -> `Keep`, `Warn` or `Suspend` (pure).

The first rule whose selector matches a session decides. Precedence of what keeps a session, highest
first: nobody entitled may reclaim now (pause) > it cannot be frozen > idleness unknown > busy > rule.
Nobody is suspended without the warning that the rule promises, also when a rule was tightened, a
pause ended, or the reclaimer was away: see `_suspend_at`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Final

from reclaimer.durations import format_duration
from reclaimer.idleness import Assessment, Busy, IdleSince, Unknown, Watch
from scheduler_bridge.model.workload import Pause

DEFAULT_WATCH: Final = Watch()

SAME_STRETCH_SECONDS: Final = 1.0
"""An announcement is about the same stretch of idleness if nothing happened this long after it."""


class Action(StrEnum):
    """What a rule does with an idle session."""

    SUSPEND = "suspend"
    KEEP = "keep"


@dataclass(frozen=True, slots=True)
class Selector:
    """Which sessions a rule is for. Empty matches all; each field lists names or patterns (`ml-*`),
    of which one must fit. `min_gpus` counts all GPUs of the session."""

    profile: tuple[str, ...] = ()
    team: tuple[str, ...] = ()
    user: tuple[str, ...] = ()
    server: tuple[str, ...] = ()
    min_gpus: int = 0

    def matches(self, session: Session) -> bool:
        """Whether every given condition holds."""
        pairs = (
            (self.profile, session.profile),
            (self.team, session.team),
            (self.user, session.user),
            (self.server, session.server),
        )
        named = all(
            not patterns or any(fnmatchcase(value, pattern) for pattern in patterns)
            for patterns, value in pairs
        )
        return named and session.gpus >= self.min_gpus

    @property
    def is_open(self) -> bool:
        """Whether it matches every session."""
        return self == Selector()


@dataclass(frozen=True, slots=True)
class Rule:
    """Times in seconds. `minimum_age` counts from the start or the last resume."""

    name: str
    match: Selector = Selector()
    idle_after: float = 120.0
    warn_before: float = 30.0
    minimum_age: float = 60.0
    action: Action = Action.SUSPEND


@dataclass(frozen=True, slots=True)
class Policy:
    """Rules in the order in which they are tried, and how telemetry is read."""

    rules: tuple[Rule, ...] = (Rule("default"),)
    watch: Watch = DEFAULT_WATCH

    def rule_for(self, session: Session) -> Rule | None:
        """The rule that decides about this session."""
        return next((rule for rule in self.rules if rule.match.matches(session)), None)


@dataclass(frozen=True, slots=True)
class Announcement:
    """What its user was last told: idle since `since`, to be suspended at `at` (UNIX seconds)."""

    since: float
    at: float


@dataclass(frozen=True, slots=True)
class Session:
    """What a verdict needs to know of a session, apart from its idleness. `blockers` say in words
    why it cannot be frozen."""

    id: str
    user: str
    server: str = ""
    team: str = ""
    profile: str = ""
    gpus: int = 0
    running_since: float = 0.0
    freezable: bool | None = None
    blockers: tuple[str, ...] = ()
    announced: Announcement | None = None


@dataclass(frozen=True, slots=True)
class Keep:
    """Leave it alone. `suspend_at` is when it would be suspended if nothing happens till then."""

    why: str
    rule: str = ""
    since: float | None = None
    suspend_at: float | None = None


@dataclass(frozen=True, slots=True)
class Warn:
    """Tell its user that it will be suspended at `at` (UNIX seconds)."""

    at: float
    why: str
    rule: str
    since: float


@dataclass(frozen=True, slots=True)
class Suspend:
    """Suspend it now."""

    why: str
    rule: str
    since: float
    at: float


Verdict = Keep | Warn | Suspend


def judge(
    policy: Policy, session: Session, idleness: Assessment, now: float, pauses: Sequence[Pause] = ()
) -> Verdict:
    """What to do with one session now."""
    pause = _pause_now(pauses, now)
    if pause is not None:
        return Keep(f"reclaiming is paused by {pause.actor}: {pause.reason or 'no reason given'}")
    if session.freezable is False:
        what = "; ".join(session.blockers) or "its processes cannot be saved"
        return Keep(f"it cannot be suspended: {what}")
    if isinstance(idleness, Unknown):
        return Keep(f"it is not known to be idle: {idleness.why}")
    if isinstance(idleness, Busy):
        return Keep(f"it is in use: {idleness.why}")
    rule = policy.rule_for(session)
    if rule is None:
        return Keep("it is idle, but no rule of the policy is for it", since=idleness.since)
    if rule.action is Action.KEEP:
        why = f"it is idle, but rule {rule.name} keeps it"
        return Keep(why, rule.name, since=idleness.since)
    return _by_the_clock(rule, session, idleness, now)


def _by_the_clock(rule: Rule, session: Session, idleness: IdleSince, now: float) -> Verdict:
    at = _suspend_at(rule, session, idleness.since, now)
    after = format_duration(rule.idle_after)
    why = f"idle since {idleness.because}; rule {rule.name} suspends after {after}"
    if now >= at:
        return Suspend(why, rule.name, idleness.since, at)
    if now >= at - rule.warn_before:
        return Warn(at, why, rule.name, idleness.since)
    return Keep(why, rule.name, idleness.since, at)


def _suspend_at(rule: Rule, session: Session, since: float, now: float) -> float:
    """When to suspend: when the rule says so, but not before the warning has been out long enough.

    A moment that was announced for this stretch of idleness holds, unless the rule now says later.
    If none was, or it lies further away than a warning from now on would, the warning starts now.
    """
    due = max(since + rule.idle_after, session.running_since + rule.minimum_age)
    warned = now + rule.warn_before
    told = session.announced
    if told is not None and told.since + SAME_STRETCH_SECONDS >= since:
        warned = min(told.at, warned)
    return max(due, warned)


def _pause_now(pauses: Sequence[Pause], now: float) -> Pause | None:
    return next((p for p in pauses if p.scope in ("reclaim", "all") and p.until > now), None)
