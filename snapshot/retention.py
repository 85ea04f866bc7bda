"""Which snapshots go, by rule (pure).

Older ones, which a newer one of the same session has replaced, go when there are too many of them or
they are too old. The current one of a suspended session is all there is of somebody's work: it gets a
date, is never removed before the date was shown for `notice` seconds, and warnings are due before. What
a session that goes on may still need is never touched, and neither is what nobody knows anything about.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Final

DAY: Final = 86400.0
NOTICE_SECONDS: Final = 7 * DAY
WARNINGS: Final = (7, 1)
"""Days before the date."""


class State(StrEnum):
    """What became of a session. `alive` is any in which it may need its snapshot at any moment;
    `unknown` when nobody can tell."""

    ALIVE = "alive"
    SUSPENDED = "suspended"
    ENDED = "ended"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Manifest:
    """A snapshot in the store. `order` is (epoch, sequence)."""

    name: str
    owner: str
    session: str
    order: tuple[int, int]
    created_at: float
    packs: frozenset[str]


@dataclass(frozen=True, slots=True)
class Date:
    """When the current snapshot of a suspended session goes (UNIX seconds), by which rule, and why.
    `announced_at` is since when its owner can see it; `warned` are the days before for which a warning
    was given."""

    snapshot: str
    at: float
    rule: str
    reason: str
    announced_at: float | None = None
    warned: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Session:
    """What is known of a session: suspended or ended since when, which manifest it would come back
    from, the date that was announced, and whether its owner's account still exists."""

    id: str
    owner: str
    team: str = ""
    profile: str = ""
    state: State = State.UNKNOWN
    since: float = 0.0
    current: str = ""
    date: Date | None = None
    owner_exists: bool = True


@dataclass(frozen=True, slots=True)
class Match:
    """Patterns such as `ml-*`; an empty tuple takes everybody."""

    user: tuple[str, ...] = ()
    team: tuple[str, ...] = ()
    profile: tuple[str, ...] = ()

    def takes(self, session: Session) -> bool:
        """Whether the session is meant."""
        return (
            _fits(self.user, session.owner)
            and _fits(self.team, session.team)
            and _fits(self.profile, session.profile)
        )


@dataclass(frozen=True, slots=True)
class Rule:
    """Times in seconds, None for ever or without limit. `keep_last` counts older snapshots of a
    session; the limits are for what one user, and one team, has in sessions of this rule."""

    name: str
    match: Match = Match()
    keep_last: int | None = 2
    keep_older_for: float | None = 7 * DAY
    keep_suspended_for: float | None = None
    keep_ended_for: float | None = DAY
    bytes_per_user: int | None = None
    bytes_per_team: int | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """The first rule that takes a session decides; without one everything of it stays."""

    rules: tuple[Rule, ...] = ()
    grace: float = DAY


@dataclass(frozen=True, slots=True)
class Removal:
    """One snapshot that goes now. `ends_session`: it is the current one of a suspended session,
    whose date has come. `bytes` is what nothing else that stays needs."""

    manifest: str
    owner: str
    session: str
    rule: str
    reason: str
    bytes: int = 0
    ends_session: bool = False


@dataclass(frozen=True, slots=True)
class Announcement:
    """A date that is new or changed, or has warnings that are due; None: it is taken back."""

    session: str
    owner: str
    date: Date | None


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now."""

    removals: tuple[Removal, ...] = ()
    announcements: tuple[Announcement, ...] = ()


@dataclass(slots=True)
class _Shelf:
    """A session with its rule and what it has left, oldest first."""

    session: Session
    rule: Rule
    manifests: list[Manifest]
    others_need: frozenset[str] = frozenset()
    limit_reason: str = ""

    def older(self) -> list[Manifest]:
        """What neither it nor another session needs."""
        if self.session.state not in (State.ALIVE, State.SUSPENDED) or not self.manifests:
            return []
        needed = self.others_need | {self.manifests[-1].name, self.session.current}
        return [manifest for manifest in self.manifests if manifest.name not in needed]

    def unneeded(self) -> list[Manifest]:
        """What no other session needs."""
        return [manifest for manifest in self.manifests if manifest.name not in self.others_need]


@dataclass(slots=True)
class _Deciding:
    """Decisions so far, and how many of what is left needs each pack."""

    sizes: Mapping[str, int]
    uses: Counter[str]
    removals: list[Removal] = field(default_factory=list)

    def remove(self, shelf: _Shelf, manifest: Manifest, reason: str, *, ends: bool = False) -> None:
        shelf.manifests.remove(manifest)
        self.uses.subtract(manifest.packs)
        freed = sum(self.sizes.get(pack, 0) for pack in manifest.packs if self.uses[pack] == 0)
        self.removals.append(
            Removal(
                manifest.name,
                shelf.session.owner,
                shelf.session.id,
                shelf.rule.name,
                reason,
                freed,
                ends,
            )
        )


def decide(
    policy: Policy,
    sessions: Mapping[str, Session],
    manifests: Iterable[Manifest],
    pack_sizes: Mapping[str, int],
    now: float,
    *,
    needed: Mapping[str, str] | None = None,
) -> Decision:
    """What goes now and what is announced. `sessions` by id; what is not in it is unknown. `needed`
    are the manifests that sessions would come back from, by the session's id: one that was begun
    from another's snapshot needs that one's."""
    everything = sorted(manifests, key=lambda m: m.order)
    shelves = _shelves(policy, sessions, everything)
    for shelf in shelves:
        others = (name for user, name in (needed or {}).items() if user != shelf.session.id)
        shelf.others_need = frozenset(others)
    deciding = _Deciding(pack_sizes, Counter(p for m in everything for p in m.packs))
    for shelf in shelves:
        _remove_ended(deciding, shelf, now)
        _remove_older(deciding, shelf, now)
    for group, limit, whose in _groups(shelves):
        _keep_below(deciding, group, limit, whose)
    announcements = [a for shelf in shelves if (a := _date(deciding, shelf, now)) is not None]
    return Decision(tuple(deciding.removals), tuple(announcements))


def _shelves(
    policy: Policy, sessions: Mapping[str, Session], everything: Sequence[Manifest]
) -> list[_Shelf]:
    found: dict[str, _Shelf] = {}
    for manifest in everything:
        session = sessions.get(manifest.session)
        if session is None or session.state is State.UNKNOWN:
            continue
        if session.owner != manifest.owner:
            continue
        rule = next((rule for rule in policy.rules if rule.match.takes(session)), None)
        if rule is not None:
            found.setdefault(session.id, _Shelf(session, rule, [])).manifests.append(manifest)
    return list(found.values())


def _remove_ended(deciding: _Deciding, shelf: _Shelf, now: float) -> None:
    keep = shelf.rule.keep_ended_for
    if (
        shelf.session.state is State.ENDED
        and keep is not None
        and now - shelf.session.since >= keep
    ):
        for manifest in shelf.unneeded():
            deciding.remove(shelf, manifest, f"the session ended {_time(keep)} ago or earlier")


def _remove_older(deciding: _Deciding, shelf: _Shelf, now: float) -> None:
    rule, older = shelf.rule, shelf.older()
    many = len(older) - rule.keep_last if rule.keep_last is not None else 0
    for index, manifest in enumerate(older):
        keep = rule.keep_older_for
        if index < many:
            deciding.remove(shelf, manifest, f"the session has more than {rule.keep_last} older")
        elif keep is not None and now - manifest.created_at >= keep:
            deciding.remove(shelf, manifest, f"replaced, and made {_time(keep)} ago or earlier")


def _groups(shelves: Sequence[_Shelf]) -> Iterator[tuple[list[_Shelf], int, str]]:
    """Those that share a limit, and whose it is: users' limits first."""
    groups: dict[tuple[int, str, str], list[_Shelf]] = {}
    limits: dict[tuple[int, str, str], int] = {}
    for shelf in shelves:
        rule, session = shelf.rule, shelf.session
        for order, whose, limit in (
            (0, session.owner, rule.bytes_per_user),
            (1, session.team, rule.bytes_per_team),
        ):
            if limit is not None:
                groups.setdefault((order, rule.name, whose), []).append(shelf)
                limits[order, rule.name, whose] = limit
    for key in sorted(groups):
        kind = "team" if key[0] else "user"
        yield groups[key], limits[key], f"{kind} {key[2]}"


def _keep_below(deciding: _Deciding, group: list[_Shelf], limit: int, whose: str) -> None:
    """Older snapshots go at once, oldest first; then suspended sessions get a date, those that
    are suspended longest first."""
    uses = Counter(p for shelf in group for m in shelf.manifests for p in m.packs)
    used = sum(deciding.sizes.get(pack, 0) for pack in uses)
    reason = f"{whose} has more than {_size(limit)} stored"

    def take(packs: frozenset[str]) -> int:
        uses.subtract(packs)
        return sum(deciding.sizes.get(pack, 0) for pack in packs if uses[pack] == 0)

    older = sorted(
        ((m.created_at, m.name, m, shelf) for shelf in group for m in shelf.older()),
        key=lambda each: each[:2],
    )
    for *_, manifest, shelf in older:
        if used <= limit:
            return
        used -= take(manifest.packs)
        deciding.remove(shelf, manifest, reason)
    for shelf in sorted(group, key=lambda each: (each.session.since, each.session.id)):
        if used <= limit:
            return
        if shelf.session.state is State.SUSPENDED and not shelf.limit_reason:
            used -= sum(take(manifest.packs) for manifest in shelf.manifests)
            shelf.limit_reason = reason


def _date(deciding: _Deciding, shelf: _Shelf, now: float) -> Announcement | None:
    """The date of a suspended session: announced, changed, warned of, taken back or carried out."""
    session = shelf.session
    if session.state is not State.SUSPENDED or not shelf.manifests:
        return None
    if session.current not in {manifest.name for manifest in shelf.unneeded()}:
        return None
    known = session.date if session.date and session.date.snapshot == session.current else None
    wanted = min(_wanted(shelf, known, now), key=lambda date: date.at, default=None)
    if wanted is None:
        return Announcement(session.id, session.owner, None) if known else None
    date = _shown_long_enough(wanted, known, now)
    if known and now >= date.at and now - (known.announced_at or now) >= NOTICE_SECONDS:
        for manifest in shelf.unneeded():
            ends = manifest.name == session.current
            deciding.remove(shelf, manifest, date.reason, ends=ends)
        return None
    return None if date == known else Announcement(session.id, session.owner, date)


def _wanted(shelf: _Shelf, known: Date | None, now: float) -> Iterator[Date]:
    """The dates that rules ask for."""
    session, rule = shelf.session, shelf.rule
    if rule.keep_suspended_for is not None:
        at = session.since + rule.keep_suspended_for
        reason = f"suspended for {_time(rule.keep_suspended_for)}"
        yield Date(session.current, at, rule.name, reason)
    soon = known.at if known else now + NOTICE_SECONDS
    if shelf.limit_reason:
        same = known is not None and known.reason == shelf.limit_reason
        at = soon if same else now + NOTICE_SECONDS
        yield Date(session.current, at, rule.name, shelf.limit_reason)
    if not session.owner_exists:
        reason = "its owner's account was deleted"
        same = known is not None and known.reason == reason
        yield Date(session.current, soon if same else now + NOTICE_SECONDS, rule.name, reason)


def _shown_long_enough(wanted: Date, known: Date | None, now: float) -> Date:
    """The date as it may be: an earlier one than was shown must be shown for the notice too."""
    at = max(wanted.at, now + NOTICE_SECONDS)
    if known is not None:
        at = wanted.at if wanted.at >= known.at else min(known.at, at)
    warned = tuple(days for days in WARNINGS if now >= at - days * DAY)
    announced = known.announced_at if known else None
    return replace(wanted, at=at, warned=warned, announced_at=announced)


def _fits(patterns: tuple[str, ...], name: str) -> bool:
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)


def _time(seconds: float) -> str:
    days = seconds / DAY
    if days >= 1:
        return f"{days:.0f} day{'' if round(days) == 1 else 's'}"
    return f"{seconds / 3600:.0f} h" if seconds >= 3600 else f"{seconds:.0f} s"


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
