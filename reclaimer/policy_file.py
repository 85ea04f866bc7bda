"""The policy as an operator writes it: versioned YAML, checked as a whole, re-read when it changes."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from ruamel.yaml.comments import CommentedMap

from reclaimer.idleness import KERNELS, SIGNALS, Watch
from reclaimer.policy import Action, Policy, Rule, Selector
from reclaimer.policy_document import MistakesError, load
from reclaimer.policy_reader import Mistake, Reader

VERSION = 1
DEFAULT_POLICY = "default_policy.yaml"

SECONDS_PER_DAY = 86400.0
LONGEST_IDLE = 90 * SECONDS_PER_DAY
LONGEST_WINDOW = 3600.0
LONGEST_CORES = 1024.0
MAX_GPUS = 100_000


class PolicyError(MistakesError):
    """The policy cannot be used."""


@dataclass(frozen=True, slots=True)
class _Times:
    """What rules inherit."""

    idle_after: float = 120.0
    warn_before: float = 30.0
    minimum_age: float = 60.0
    action: str = Action.SUSPEND


def default_policy_text() -> str:
    """The policy that is shipped, with its comments; an operator's file starts as a copy of it."""
    return resources.files("reclaimer").joinpath(DEFAULT_POLICY).read_text(encoding="utf-8")


def default_policy() -> Policy:
    """The policy that is shipped."""
    return parse_policy(default_policy_text(), DEFAULT_POLICY)


def parse_policy(text: str, source: str = "policy") -> Policy:
    """Read and check the whole text. Raises `PolicyError` with all mistakes."""
    document = load(text, source, VERSION, PolicyError)
    reader = Reader()
    policy = _policy(reader, document)
    if reader.mistakes:
        raise PolicyError(source, tuple(sorted(reader.mistakes, key=lambda m: m.line)))
    return policy


def read_policy(path: Path) -> Policy:
    """Read and check a file. Raises `PolicyError`, also when it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise PolicyError(str(path), (Mistake(1, "", f"cannot be read: {reason}"),)) from error
    return parse_policy(text, str(path))


def _policy(reader: Reader, document: CommentedMap) -> Policy:
    version = document.get("version")
    if version != VERSION or isinstance(version, bool):
        reader.complain(document, "version", f"must be {VERSION}, the only version known here")
        return Policy()
    reader.known_keys(document, ("version", "defaults", "signals", "rules"))
    times = _times(reader, reader.mapping(document, "defaults"), _Times(), top=True)
    watch = _watch(reader, reader.mapping(document, "signals"))
    rules = tuple(
        _rule(reader, entry, times) for entry in reader.mappings(document, "rules", required=True)
    )
    if not reader.mistakes:
        _check_order(reader, document, rules)
    return Policy(rules, watch)


def _times(reader: Reader, node: CommentedMap, inherited: _Times, *, top: bool) -> _Times:
    if top:
        reader.known_keys(node, ("idle_after", "warn_before", "minimum_age", "action"))
    read = _Times(
        idle_after=reader.duration(
            node, "idle_after", inherited.idle_after, least=1.0, most=LONGEST_IDLE
        ),
        warn_before=reader.duration(node, "warn_before", inherited.warn_before, most=LONGEST_IDLE),
        minimum_age=reader.duration(node, "minimum_age", inherited.minimum_age, most=LONGEST_IDLE),
        action=reader.choice(node, "action", inherited.action, tuple(Action)),
    )
    if read.warn_before > read.idle_after:
        key = "warn_before" if "warn_before" in node else "idle_after"
        reader.complain(node, key, "the warning (warn_before) would come before idle_after begins")
    return read


def _watch(reader: Reader, node: CommentedMap) -> Watch:
    reader.known_keys(node, ("count", "stale_after", "cpu_cores", "cpu_window"))
    usual = Watch()
    counted = reader.choices(node, "count", SIGNALS)
    if "count" in node and KERNELS not in counted:
        reader.complain(node, "count", "must have kernels: a busy kernel is never idle")
    return Watch(
        stale_after=reader.duration(
            node, "stale_after", usual.stale_after, least=5.0, most=LONGEST_WINDOW
        ),
        cpu_cores=reader.number(
            node, "cpu_cores", usual.cpu_cores, least=0.001, most=LONGEST_CORES
        ),
        cpu_window=reader.duration(
            node, "cpu_window", usual.cpu_window, least=1.0, most=LONGEST_WINDOW
        ),
        counted=frozenset(counted) if "count" in node else usual.counted,
    )


def _rule(reader: Reader, node: CommentedMap, inherited: _Times) -> Rule:
    known = ("name", "match", "idle_after", "warn_before", "minimum_age", "action")
    reader.known_keys(node, known)
    times = _times(reader, node, inherited, top=False)
    return Rule(
        name=reader.text(node, "name"),
        match=_selector(reader, reader.mapping(node, "match")),
        idle_after=times.idle_after,
        warn_before=times.warn_before,
        minimum_age=times.minimum_age,
        action=Action(times.action),
    )


def _selector(reader: Reader, node: CommentedMap) -> Selector:
    reader.known_keys(node, ("profile", "team", "user", "server", "min_gpus"))
    return Selector(
        profile=reader.texts(node, "profile"),
        team=reader.texts(node, "team"),
        user=reader.texts(node, "user"),
        server=reader.texts(node, "server"),
        min_gpus=int(reader.number(node, "min_gpus", 0, most=MAX_GPUS, whole=True)),
    )


def _check_order(reader: Reader, document: CommentedMap, rules: tuple[Rule, ...]) -> None:
    """Names are unique, and no rule stands behind one that already takes every session."""
    seen: set[str] = set()
    open_rule = ""
    for number, rule in enumerate(rules):
        node = document["rules"][number]
        if rule.name and rule.name in seen:
            reader.complain(node, "name", f"{rule.name} is the name of an earlier rule")
        if open_rule:
            reader.complain(node, "name", f"is never reached: rule {open_rule} takes every session")
        seen.add(rule.name)
        if rule.match.is_open and not open_rule:
            open_rule = rule.name or "above"


@dataclass(slots=True)
class PolicyFile:
    """The policy in force. A file with mistakes changes nothing; `error` then says what is wrong.

    Before the first valid reading there is no policy, and nobody is reclaimed. Without a path, the
    shipped policy is in force.
    """

    path: Path | None
    policy: Policy | None = None
    error: PolicyError | None = None
    _stamp: tuple[int, ...] | None = field(default=None, repr=False)

    def current(self) -> Policy | None:
        """The policy in force, after a look at whether the file has changed."""
        if self.path is None:
            self.policy = self.policy or default_policy()
            return self.policy
        stamp = _stamp_of(self.path)
        if self._stamp is None or stamp != self._stamp:
            self._stamp = stamp
            self._reload(self.path)
        return self.policy

    def _reload(self, path: Path) -> None:
        try:
            self.policy = read_policy(path)
            self.error = None
        except PolicyError as error:
            self.error = error


def _stamp_of(path: Path) -> tuple[int, ...]:
    """Changes whenever the file does; () while it cannot be seen."""
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return (status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size)
