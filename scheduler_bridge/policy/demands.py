"""What a snapshot demands of the machine that brings it back: rules as data.

Facts and demands have the names under which snapshots carry them. A fact that one side does not have
is not judged: the machine itself looks again before it brings anything back. The verdicts are those
of that second look, so that nothing is placed where it is then refused.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final

from scheduler_bridge.policy.values import NodeState

Facts = Mapping[str, str]
Lack = dict[str, str]
"""What is missing, as words, and what is there instead (empty where that says nothing)."""


class Comparison(StrEnum):
    """How the machine's fact must relate to the demand."""

    EQUAL = "equal"
    NOT_OLDER = "not older"
    AT_LEAST = "at least"
    CONTAINS = "contains"


@dataclass(frozen=True, slots=True)
class Rule:
    """One demand. `words` may name {wanted} and, for CONTAINS, what is {missing}. `parts`: how many
    numbers of a version count; 0 means all. `shows`: whether the machine's own value tells people
    anything."""

    fact: str
    comparison: Comparison
    words: str
    parts: int = 0
    shows: bool = True


RULES: Final = (
    Rule("architecture", Comparison.EQUAL, "a {wanted} processor"),
    Rule("cpu_flags", Comparison.CONTAINS, "a processor with {missing}", shows=False),
    Rule(
        "xsave_bytes",
        Comparison.AT_LEAST,
        "a processor with {wanted} bytes of registers",
    ),
    Rule(
        "xsave_layout",
        Comparison.CONTAINS,
        "a processor that lays its registers out alike",
        shows=False,
    ),
    Rule("kernel", Comparison.NOT_OLDER, "Linux {wanted} or newer", parts=2),
    Rule("criu", Comparison.NOT_OLDER, "CRIU {wanted} or newer"),
    Rule("gpu_driver", Comparison.EQUAL, "NVIDIA driver {wanted}"),
    Rule("image", Comparison.EQUAL, "the container image {wanted}"),
)


@dataclass(frozen=True, slots=True)
class Break:
    """From version `since` of one fact on, a machine needs at least `at_least` of another."""

    fact: str
    since: str
    needs: str
    at_least: str
    words: str


BREAKS: Final = (Break("kernel", "6.13", "criu", "4.1", "CRIU 4.1 or newer"),)


def lacking(demands: Facts, gpus: int, node: NodeState) -> Lack:
    """What the machine lacks even when it is empty; nothing if it can bring the snapshot back."""
    if not demands:
        return {}
    found = {
        _words(rule, demands[rule.fact], node.facts[rule.fact]): node.facts[rule.fact]
        if rule.shows
        else ""
        for rule in RULES
        if rule.fact in demands
        and rule.fact in node.facts
        and not _MEETS[rule.comparison](rule, demands[rule.fact], node.facts[rule.fact])
    }
    found |= {it.words: node.facts[it.needs] for it in BREAKS if _breaks(it, node.facts)}
    if "gpu_models" in demands and choose(demands, gpus, node, node.gpus) is None:
        found[gpus_wanted(demands)] = _counted(_model(node, gpu) for gpu in node.gpus)
    return found


def choose(
    demands: Facts, count: int, node: NodeState, available: Collection[str]
) -> tuple[str, ...] | None:
    """`count` of the available GPUs of the node, or None. A snapshot with GPU memory gets the models
    that it had, in the order that it had them, or the very same GPUs where it says so."""
    gpus = [gpu for gpu in node.gpus if gpu in available] if count else []
    if len(gpus) < count:
        return None
    if "gpu_models" not in demands:
        return tuple(gpus[:count])
    models = demands["gpu_models"].split("; ")
    if len(models) != count:
        return None
    uuids = _split(demands.get("gpu_uuids", ""))
    if uuids:
        gpus = uuids if set(uuids) <= set(gpus) else []
    return _in_order(node, gpus, needs_these(demands, count))


def _in_order(
    node: NodeState, gpus: list[str], wanted: list[tuple[str, int]]
) -> tuple[str, ...] | None:
    """The first of the GPUs that have these models and that much memory, one after the other."""
    chosen: list[str] = []
    for gpu in gpus:
        if len(chosen) < len(wanted) and is_like(node, gpu, *wanted[len(chosen)]):
            chosen.append(gpu)
    return tuple(chosen) if len(chosen) == len(wanted) else None


def is_exact(demands: Facts) -> bool:
    """Whether it matters which GPUs of a machine it gets, beyond their model."""
    models = demands.get("gpu_models", "").split("; ")
    return bool(demands.get("gpu_uuids")) or len(set(models)) > 1


def needs_these(demands: Facts, count: int) -> list[tuple[str, int]]:
    """Model and least memory of each GPU that a snapshot demands; empty if it demands none."""
    if "gpu_models" not in demands:
        return []
    models = demands["gpu_models"].split("; ")
    sizes = [int(size) if size.isdecimal() else 0 for size in _split(demands.get("gpu_bytes", ""))]
    return [*zip(models, [*sizes, *[0] * count], strict=False)]


def is_like(node: NodeState, gpu: str, model: str, size: int) -> bool:
    """Whether the GPU is of that model and has that much memory, as far as is known."""
    kind = node.kinds.get(gpu)
    if kind is None:
        return True
    return kind.model == model and (kind.memory_bytes is None or kind.memory_bytes >= size)


def _breaks(it: Break, facts: Facts) -> bool:
    return (
        it.fact in facts
        and it.needs in facts
        and numbers(facts[it.fact]) >= numbers(it.since)
        and numbers(facts[it.needs]) < numbers(it.at_least)
    )


@lru_cache(maxsize=1024)
def _parts(text: str) -> frozenset[str]:
    """Machines and sessions of a kind share their hundreds of processor flags."""
    return frozenset(text.split())


@lru_cache(maxsize=1024)
def numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version, without trailing zeros: `6.18.44-cloud` is (6, 18, 44)."""
    found = re.match(r"\d+(?:\.\d+)*", version, re.ASCII)
    values = [int(part) for part in found[0].split(".")] if found else []
    while values and values[-1] == 0:
        values.pop()
    return tuple(values)


def _not_older(rule: Rule, wanted: str, found: str) -> bool:
    parts = rule.parts or None
    return numbers(found)[:parts] >= numbers(wanted)[:parts]


_MEETS: Final[dict[Comparison, Callable[[Rule, str, str], bool]]] = {
    Comparison.EQUAL: lambda _rule, wanted, found: wanted == found,
    Comparison.NOT_OLDER: _not_older,
    Comparison.AT_LEAST: lambda _rule, wanted, found: numbers(found) >= numbers(wanted),
    Comparison.CONTAINS: lambda _rule, wanted, found: _parts(wanted) <= _parts(found),
}


def _words(rule: Rule, wanted: str, found: str) -> str:
    missing = ", ".join(sorted(_parts(wanted) - _parts(found)))
    return rule.words.format(wanted=wanted or "none", missing=missing)


def gpus_wanted(demands: Facts) -> str:
    """The GPUs that a snapshot demands, as words."""
    models = _counted(demands["gpu_models"].split("; "))
    uuids = _split(demands.get("gpu_uuids", ""))
    return f"{models} ({', '.join(uuids)})" if uuids else models


def _counted(models: Iterable[str]) -> str:
    """`2 × NVIDIA H200 and NVIDIA L4`."""
    counts = Counter(models)
    shown = [model if many == 1 else f"{many} × {model}" for model, many in counts.items()]
    return " and ".join(shown) or "no GPU"


def _model(node: NodeState, gpu: str) -> str:
    kind = node.kinds.get(gpu)
    return kind.model if kind else "an unknown GPU"


def _split(text: str) -> list[str]:
    return [part for part in text.split(",") if part]
