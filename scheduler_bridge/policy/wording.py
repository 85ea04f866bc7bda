"""The one place where reasons become sentences that a researcher understands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from scheduler_bridge.policy.values import PreemptionReason, WaitReason

_NAMED_AT_MOST: Final = 3


def gpus(count: int) -> str:
    """`1 GPU`, `3 GPUs`."""
    return f"{count} GPU" if count == 1 else f"{count} GPUs"


def _no_free(e: Mapping[str, Any]) -> str:
    return f"It needs {gpus(e['needed'])} and {e['free'] or 'none'} of the fleet's is free."


def _scattered(e: Mapping[str, Any]) -> str:
    return f"{gpus(e['free'])} in all are free, but not together as it needs them."


def _promised(e: Mapping[str, Any]) -> str:
    return "The free GPUs are kept for a workload that others are making room for."


def _fitting_node(e: Mapping[str, Any]) -> str:
    machines = ", ".join(e["machines"])
    return f"It waits for a machine with {_and(e['needs'])}: {machines}."


def _no_node_fits(e: Mapping[str, Any]) -> str:
    there: dict[str, list[str]] = {}
    for name, lack in e["lacks"].items():
        for words, found in lack.items():
            there.setdefault(words, []).append(f"{name} has {found}" if found else f"not {name}")
    needs = [f"{words} ({_some(names)})" for words, names in there.items()]
    return f"No machine of this installation can bring it back: it needs {_and(needs)}."


def _and(parts: Sequence[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if parts[1:] else parts)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED_AT_MOST} more" if len(names) > _NAMED_AT_MOST else ""
    return ", ".join(names[:_NAMED_AT_MOST]) + more


def _team_limit(e: Mapping[str, Any]) -> str:
    return (
        f"Team {e['team']} may hold {gpus(e['limit'])} at once and holds {e['used']}; "
        f"it needs {e['needed']} more."
    )


def _priority_limit(e: Mapping[str, Any]) -> str:
    return (
        f"Team {e['team']} may hold {gpus(e['limit'])} at once with work of this priority and above, "
        f"and holds {e['used']}; it needs {e['needed']} more."
    )


def _guaranteed(e: Mapping[str, Any]) -> str:
    teams = _and([f"team {name}" for name in e["teams"]])
    return f"{gpus(e['gpus'])} are kept for {teams}, to which they are guaranteed."


def _reserved(e: Mapping[str, Any]) -> str:
    return "The free GPUs are reserved for larger work, which would have to wait for this to end."


def _headroom(e: Mapping[str, Any]) -> str:
    return f"The last {gpus(e['headroom'])} are left free for short, small work."


def _too_large(e: Mapping[str, Any]) -> str:
    return f"It needs more than any machine has now ({gpus(e['largest'])} at most)."


def _being_freed(e: Mapping[str, Any]) -> str:
    return f"{gpus(e['gpus'])} {'is' if e['gpus'] == 1 else 'are'} being freed for it."


def _paused(e: Mapping[str, Any]) -> str:
    count = len(e["would_yield"])
    who = "one workload" if count == 1 else f"{count} workloads"
    return f"Room could be made by asking {who} to yield, but an administrator paused that."


def _no_node(e: Mapping[str, Any]) -> str:
    return "No machine is ready."


def _leaving(e: Mapping[str, Any]) -> str:
    return "Its former processes are not proven to be gone yet."


def _retry(e: Mapping[str, Any]) -> str:
    return "Its last start failed; it is tried again soon."


_SENTENCES: Final[dict[WaitReason, Callable[[Mapping[str, Any]], str]]] = {
    WaitReason.NO_FREE_GPUS: _no_free,
    WaitReason.SCATTERED: _scattered,
    WaitReason.PROMISED: _promised,
    WaitReason.FITTING_NODE: _fitting_node,
    WaitReason.NO_NODE_FITS: _no_node_fits,
    WaitReason.TEAM_LIMIT: _team_limit,
    WaitReason.PRIORITY_LIMIT: _priority_limit,
    WaitReason.GUARANTEED: _guaranteed,
    WaitReason.RESERVED: _reserved,
    WaitReason.HEADROOM: _headroom,
    WaitReason.TOO_LARGE: _too_large,
    WaitReason.BEING_FREED: _being_freed,
    WaitReason.PREEMPTION_PAUSED: _paused,
    WaitReason.NO_READY_NODE: _no_node,
    WaitReason.STILL_LEAVING: _leaving,
    WaitReason.RETRY_LATER: _retry,
}

_REMEDIES: Final[dict[WaitReason, str]] = {
    WaitReason.NO_FREE_GPUS: "Ask for fewer GPUs, or wait until somebody's work ends.",
    WaitReason.SCATTERED: "Ask for fewer GPUs per machine.",
    WaitReason.PROMISED: "Nothing to do: it is next in turn after that.",
    WaitReason.FITTING_NODE: "Nothing to do: it resumes as soon as such a machine has room.",
    WaitReason.NO_NODE_FITS: "Nothing is lost: its memory is kept. Ask an administrator for such a "
    "machine, or start fresh with your files.",
    WaitReason.TEAM_LIMIT: "End or suspend other work of the team, or ask for a higher limit.",
    WaitReason.PRIORITY_LIMIT: "Lower its priority, or wait until urgent work of the team ends.",
    WaitReason.GUARANTEED: "Ask for a shorter guarantee or none: what is guaranteed to others is lent "
    "to work without one.",
    WaitReason.RESERVED: "Ask for a shorter guarantee, so that it can run until then.",
    WaitReason.HEADROOM: "Ask for at most 2 GPUs and 15 minutes of protection, or wait.",
    WaitReason.TOO_LARGE: "Ask for fewer GPUs, or ask an administrator what became of the machine.",
    WaitReason.BEING_FREED: "Nothing to do: it starts as soon as they are free.",
    WaitReason.PREEMPTION_PAUSED: "Wait until the pause ends, or ask an administrator to end it.",
    WaitReason.NO_READY_NODE: "Ask an administrator.",
    WaitReason.STILL_LEAVING: "Nothing to do; ask an administrator if it lasts for minutes.",
    WaitReason.RETRY_LATER: "Nothing to do; its history shows what failed.",
}


def wait_sentence(reason: WaitReason, evidence: Mapping[str, Any]) -> str:
    """One plain sentence."""
    return _SENTENCES[reason](evidence)


def wait_remedy(reason: WaitReason) -> str:
    """What the owner can do about it."""
    return _REMEDIES[reason]


def preemption_sentence(reason: PreemptionReason, preemptor: str) -> str:
    """Why a workload is asked to yield, told to its owner. `preemptor` is empty where its owner may
    not know for whom."""
    who = preemptor or "other work"
    first, team = preemptor or "Other work", f"{preemptor}'s" if preemptor else "another"
    return {
        PreemptionReason.IDLE: f"It is idle and {who} waits for GPUs.",
        PreemptionReason.UNALLOCATED: f"It runs on what others left, and {who} needs GPUs.",
        PreemptionReason.GUARANTEE: f"Its GPUs are guaranteed to {team} team, which needs them back.",
        PreemptionReason.TURN_ENDED: f"Its protected time is over, and it is {who}'s turn.",
        PreemptionReason.OUTRANKED: f"{first}, of higher priority in its team, needs GPUs.",
        PreemptionReason.RETURNING_SESSION: f"{first}, a session of its team, comes back.",
    }[reason]
