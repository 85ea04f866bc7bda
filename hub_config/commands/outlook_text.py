"""When work starts and what would start it, for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from hub_config.commands.output import moment
from scheduler_bridge.model.outlook import Change, Estimate

_NONE: Final = {
    "no_machine": "no machine that is ready could run it",
    "paused": "preemption is paused, and nobody knows what ends before the pause does",
    "too_few_started": "too little work of this size has started lately to tell, and nothing is "
    "reserved for it",
    "too_many_wait": "so much work of this size still waits that nobody can tell",
    "held_back": "something else holds it back first",
}


def estimate_line(estimate: Estimate | None) -> str:
    """One sentence, or nothing."""
    if estimate is None:
        return ""
    if estimate.latest is None:
        return f"No ETA: {_NONE.get(estimate.reason, estimate.reason)}."
    return f"ETA: {interval(estimate)} ({_trust(estimate)})."


def interval(estimate: Estimate) -> str:
    """`by 14:20:00`, or from when to when; nothing if it is not known."""
    if estimate.latest is None:
        return ""
    is_soon = estimate.earliest is None or estimate.earliest <= estimate.given_at
    if is_soon:
        return f"by {moment(estimate.latest)}"
    return f"between {moment(estimate.earliest)} and {moment(estimate.latest)}"


def _trust(estimate: Estimate) -> str:
    likely = f"{estimate.probability:.0%} likely"
    if estimate.measured is None:
        return f"{likely}; no such estimate could be compared yet"
    return f"{likely}; of {estimate.compared} such estimates {estimate.measured:.0%} came true"


def change_lines(changes: Iterable[Change]) -> list[str]:
    """What would start it now, the smallest change first, then when it starts as it is."""
    every = tuple(changes)
    now = [f"  {_change(each)}" for each in every if each.at is None]
    later = [f"At {moment(each.at)} {each.text}." for each in every if each.at is not None]
    return [*(["It would start now with:"] if now else []), *now, *later]


def _change(change: Change) -> str:
    return f"{change.text}{', once others have made room' if change.makes_room else ''}"
