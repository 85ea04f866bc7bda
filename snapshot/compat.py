"""Which machines can bring a snapshot back: rules as data (pure).

A snapshot carries facts of the machine it was frozen on (`constraints`), a machine has facts of the
same names (see `host_facts`). A fact that one side does not have is not judged; an empty fact means
that it is known to be none (no driver, no image).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from snapshot.instructions import instructions

Facts = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Incompatibility:
    """One reason why a machine cannot bring a snapshot back. `what` is the fact's name, `why` and
    `remedy` are sentences for people."""

    what: str
    why: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.why} {self.remedy}"


class Comparison(StrEnum):
    """How the machine's fact must relate to the snapshot's."""

    SAME = "same"
    NOT_OLDER = "not older"
    AT_LEAST = "at least"
    CONTAINS = "contains"


@dataclass(frozen=True, slots=True)
class Rule:
    """One demand. The sentences may name {wanted}, {found} and, for CONTAINS, what is {missing}.

    `parts`: how many numbers of a version count; 0 means all.
    """

    fact: str
    comparison: Comparison
    why: str
    remedy: str
    parts: int = 0


@dataclass(frozen=True, slots=True)
class Break:
    """From version `since` of one fact on, a machine needs at least `at_least` of another."""

    fact: str
    since: str
    needs: str
    at_least: str
    why: str
    remedy: str


_FRESH: Final = "or start fresh: the snapshot is kept."

RULES: Final = (
    Rule(
        "architecture",
        Comparison.SAME,
        "The session was frozen on a {wanted} processor; this machine has a {found} one.",
        f"Resume it on a {{wanted}} machine, {_FRESH}",
    ),
    Rule(
        "cpu_flags",
        Comparison.CONTAINS,
        "Its programs may be using processor instructions that this machine lacks: {missing}.",
        f"Resume it on a machine whose processor has them, {_FRESH}",
    ),
    Rule(
        "xsave_bytes",
        Comparison.AT_LEAST,
        "Its programs' processor registers take {wanted} bytes; this machine saves only {found}.",
        f"Resume it on a machine with the same kind of processor, {_FRESH}",
    ),
    Rule(
        "xsave_layout",
        Comparison.CONTAINS,
        "This processor keeps some registers (state {missing}) elsewhere than the one that the "
        "session was frozen on.",
        f"Resume it on a machine of the same processor vendor, {_FRESH}",
    ),
    Rule(
        "kernel",
        Comparison.NOT_OLDER,
        "The session was frozen on Linux {wanted}; this machine runs the older {found}, which may "
        "lack what its programs already use.",
        f"Resume it on a machine with that kernel or a newer one, {_FRESH}",
        parts=2,
    ),
    Rule(
        "criu",
        Comparison.NOT_OLDER,
        "It was saved by CRIU {wanted}; this machine has the older {found}, which cannot read it.",
        "Install CRIU {wanted} or newer here, or resume it on a machine that has it.",
    ),
    Rule(
        "gpu_driver",
        Comparison.SAME,
        "The CUDA library in its memory belongs to NVIDIA driver {wanted}; this machine has {found}.",
        f"Resume it on a machine with driver {{wanted}}, {_FRESH}",
    ),
    Rule(
        "gpu_models",
        Comparison.SAME,
        "Its GPU memory belongs to {wanted}; here it would get {found}.",
        f"Resume it with the same number and model of GPUs, {_FRESH}",
    ),
    Rule(
        "image",
        Comparison.SAME,
        "Its programs come from the container image {wanted}; here they would come from {found}.",
        f"Resume it from the image it was frozen in, {_FRESH}",
    ),
)

BREAKS: Final = (
    Break(
        "kernel",
        "6.13",
        "criu",
        "4.1",
        "Linux 6.13 and newer show programs their clock in another way, which CRIU {found} does not "
        "know: nothing can be frozen or brought back.",
        "Install CRIU 4.1 or newer.",
    ),
)
"""criu#2532: vvar_vclock of Linux 6.13, understood since CRIU 4.1."""


def verdict(constraints: Facts, host: Facts) -> tuple[Incompatibility, ...]:
    """Why a machine with these facts cannot bring the snapshot back; empty if it can."""
    unmet = [
        _incompatibility(rule, constraints[rule.fact], host[rule.fact])
        for rule in RULES
        if rule.fact in constraints
        and rule.fact in host
        and not _MEETS[rule.comparison](rule, constraints[rule.fact], host[rule.fact])
    ]
    return (*unmet, *broken(host))


def broken(host: Facts) -> tuple[Incompatibility, ...]:
    """What keeps a machine from freezing and thawing anything."""
    return tuple(
        Incompatibility(
            rule.needs, rule.why.format(found=host[rule.needs]), rule.remedy.format(**host)
        )
        for rule in BREAKS
        if rule.fact in host
        and rule.needs in host
        and numbers(host[rule.fact]) >= numbers(rule.since)
        and numbers(host[rule.needs]) < numbers(rule.at_least)
    )


def stranded(
    constraints: Facts, here: Facts, after: Facts
) -> tuple[tuple[Incompatibility, ...], tuple[str, ...]]:
    """What an upgrade of `here` to `after` would break for a snapshot, and which of the changed
    facts cannot be judged because the snapshot does not say (it is older than the fact)."""
    found = verdict(constraints, {**here, **after})
    touched = {*after, *(rule.needs for rule in BREAKS if rule.fact in after)}
    unknown = tuple(fact for fact in after if fact in ALWAYS_KNOWN and fact not in constraints)
    return tuple(it for it in found if it.what in touched), unknown


ALWAYS_KNOWN: Final = frozenset({"architecture", "kernel", "criu", "cpu_flags"})
"""Every snapshot depends on these; on the others only one that says so."""


def numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version, without trailing zeros: `6.18.44-cloud` is (6, 18, 44)."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    values = [int(part) for part in found[0].split(".")] if found else []
    while values and values[-1] == 0:
        values.pop()
    return tuple(values)


def _incompatibility(rule: Rule, wanted: str, found: str) -> Incompatibility:
    words = {
        "wanted": _shown(rule.fact, wanted),
        "found": _shown(rule.fact, found),
        "missing": ", ".join(sorted(_missing(wanted, found))),
    }
    return Incompatibility(rule.fact, rule.why.format(**words), rule.remedy.format(**words))


_NONE: Final = {"gpu_driver": "none", "gpu_models": "no GPU", "image": "this machine's own files"}


def _shown(fact: str, value: str) -> str:
    return value or _NONE.get(fact, "unknown")


def _missing(wanted: str, found: str) -> frozenset[str]:
    return instructions(wanted.split()) - frozenset(found.split())


def _is_same(rule: Rule, wanted: str, found: str) -> bool:
    return wanted == found


def _is_not_older(rule: Rule, wanted: str, found: str) -> bool:
    parts = rule.parts or None
    return numbers(found)[:parts] >= numbers(wanted)[:parts]


def _is_at_least(rule: Rule, wanted: str, found: str) -> bool:
    return numbers(found) >= numbers(wanted)


def _contains(rule: Rule, wanted: str, found: str) -> bool:
    return not _missing(wanted, found)


_MEETS: Final[dict[Comparison, Callable[[Rule, str, str], bool]]] = {
    Comparison.SAME: _is_same,
    Comparison.NOT_OLDER: _is_not_older,
    Comparison.AT_LEAST: _is_at_least,
    Comparison.CONTAINS: _contains,
}


@dataclass(frozen=True, slots=True)
class _Form:
    fact: str
    pattern: str
    example: str


AFTER: Final = {
    "driver": _Form("gpu_driver", r"\d+\.\d+(\.\d+)?", "580.95.05"),
    "kernel": _Form("kernel", r"\d+\.\d+(\.\d+)?([-+~.][\w.+~-]*)?", "6.18.4"),
    "image": _Form("image", r"([^@\s]+@)?sha256:[0-9a-f]{64}", "sha256:… (64 hexadecimal digits)"),
    "criu": _Form("criu", r"\d+\.\d+(\.\d+)?", "4.2.1"),
}
"""What an upgrade may be described with, and in which form."""


def parse_after(words: Iterable[str]) -> dict[str, str]:
    """`driver=580.1,kernel=6.20` as facts. Raises `ValueError` with a sentence for people."""
    facts: dict[str, str] = {}
    for word in (part.strip() for text in words for part in text.split(",")):
        key, equals, value = word.partition("=")
        form = AFTER.get(key)
        if form is None or not equals:
            known = ", ".join(f"{name}=…" for name in AFTER)
            raise ValueError(f"{word!r} is not understood; known are {known}.")
        if form.fact in facts:
            raise ValueError(f"{key} is given twice.")
        if not re.fullmatch(form.pattern, value, re.ASCII):
            raise ValueError(f"{key}={value} is malformed; it looks like {key}={form.example}.")
        facts[form.fact] = value.rpartition("@")[2]
    return facts
