"""The retention policy as an operator writes it: versioned YAML, checked as a whole."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Final, TypeVar

from ruamel.yaml.comments import CommentedMap

from reclaimer.durations import parse_duration
from reclaimer.policy_document import MistakesError, load
from reclaimer.policy_reader import Mistake, Reader
from snapshot.retention import DAY, Match, Policy, Rule

VERSION: Final = 1
DEFAULT_FILE: Final = "default_retention.yaml"
LEAST_GRACE: Final = 7200.0
MOST_DAYS: Final = 3650.0
MOST_KEPT: Final = 1000
FOREVER, UNLIMITED = "forever", "unlimited"

_TIMES: Final = ("keep_older_for", "keep_suspended_for", "keep_ended_for")
_SIZES: Final = ("bytes_per_user", "bytes_per_team")
_KEPT: Final = ("keep_last", *_TIMES, *_SIZES)
_UNITS: Final = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?) ?(KiB|MiB|GiB|TiB)")


Value = TypeVar("Value", int, float)


class RetentionError(MistakesError):
    """The policy cannot be used."""


def default_retention_text() -> str:
    """The policy that is shipped, with its comments; an operator's file starts as a copy of it."""
    return resources.files("hub_config").joinpath(DEFAULT_FILE).read_text(encoding="utf-8")


def ensure_retention(path: Path) -> None:
    """Copy the policy that is shipped, once. From then on the file is the operator's."""
    if not path.exists():
        path.write_text(default_retention_text())


def read_retention(path: Path) -> Policy:
    """The operator's policy, the shipped one where there is no file. Raises `RetentionError`."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return parse_retention(default_retention_text(), DEFAULT_FILE)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise RetentionError(str(path), (Mistake(1, "", f"cannot be read: {reason}"),)) from error
    return parse_retention(text, str(path))


def parse_retention(text: str, source: str = "retention") -> Policy:
    """Read and check the whole text. Raises `RetentionError` with all mistakes."""
    document = load(text, source, VERSION, RetentionError)
    reader = Reader()
    policy = _policy(reader, document)
    if reader.mistakes:
        raise RetentionError(source, tuple(sorted(reader.mistakes, key=lambda m: m.line)))
    return policy


def _policy(reader: Reader, document: CommentedMap) -> Policy:
    version = document.get("version")
    if version != VERSION or isinstance(version, bool):
        reader.complain(document, "version", f"must be {VERSION}, the only version known here")
        return Policy()
    reader.known_keys(document, ("version", "grace", "defaults", "rules"))
    grace = reader.duration(document, "grace", DAY, least=LEAST_GRACE, most=90 * DAY)
    defaults = reader.mapping(document, "defaults")
    reader.known_keys(defaults, _KEPT)
    inherited = _kept(reader, defaults, Rule("defaults"))
    nodes = reader.mappings(document, "rules", required=True)
    rules = tuple(_rule(reader, node, inherited) for node in nodes)
    _check_order(reader, nodes, rules)
    return Policy(rules, grace)


def _rule(reader: Reader, node: CommentedMap, inherited: Rule) -> Rule:
    reader.known_keys(node, ("name", "match", *_KEPT))
    kept = _kept(reader, node, inherited)
    selector = reader.mapping(node, "match")
    reader.known_keys(selector, ("user", "team", "profile"))
    return Rule(
        name=reader.text(node, "name"),
        match=Match(
            user=reader.texts(selector, "user"),
            team=reader.texts(selector, "team"),
            profile=reader.texts(selector, "profile"),
        ),
        keep_last=kept.keep_last,
        keep_older_for=kept.keep_older_for,
        keep_suspended_for=kept.keep_suspended_for,
        keep_ended_for=kept.keep_ended_for,
        bytes_per_user=kept.bytes_per_user,
        bytes_per_team=kept.bytes_per_team,
    )


def _kept(reader: Reader, node: CommentedMap, inherited: Rule) -> Rule:
    """A rule with the node's numbers, the inherited ones where it has none."""
    last: int | None = inherited.keep_last
    if node.get("keep_last") == UNLIMITED:
        last = None
    elif "keep_last" in node:
        last = int(reader.number(node, "keep_last", 0, most=MOST_KEPT, whole=True))
    return Rule(
        inherited.name,
        keep_last=last,
        keep_older_for=_time(reader, node, "keep_older_for", inherited.keep_older_for),
        keep_suspended_for=_time(reader, node, "keep_suspended_for", inherited.keep_suspended_for),
        keep_ended_for=_time(reader, node, "keep_ended_for", inherited.keep_ended_for),
        bytes_per_user=_bytes(reader, node, "bytes_per_user", inherited.bytes_per_user),
        bytes_per_team=_bytes(reader, node, "bytes_per_team", inherited.bytes_per_team),
    )


def _time(reader: Reader, node: CommentedMap, key: str, default: float | None) -> float | None:
    def parse(text: str) -> float:
        seconds = parse_duration(text)
        if seconds > MOST_DAYS * DAY:
            raise ValueError(f"must be {FOREVER} or at most {MOST_DAYS:.0f}d")
        return seconds

    return _or_without(reader, node, key, default, FOREVER, parse)


def _bytes(reader: Reader, node: CommentedMap, key: str, default: int | None) -> int | None:
    return _or_without(reader, node, key, default, UNLIMITED, _parse_size)


def _or_without(
    reader: Reader,
    node: CommentedMap,
    key: str,
    default: Value | None,
    word: str,
    parse: Callable[[str], Value],
) -> Value | None:
    """A parsed value, or None for the word that says that there is no end."""
    if key not in node:
        return default
    text = str(node[key]).strip()
    if text == word:
        return None
    try:
        return parse(text)
    except ValueError as error:
        reader.complain(node, key, f"{error}; or {word}")
        return default


def _parse_size(text: str) -> int:
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"`{text}` is not a size; write for example 500MiB, 50GiB or 2TiB")
    return int(float(match[1]) * _UNITS[match[2]])


def _check_order(reader: Reader, nodes: list[CommentedMap], rules: tuple[Rule, ...]) -> None:
    """Names are unique, and no rule stands behind one that already takes every session."""
    seen: set[str] = set()
    open_rule = ""
    for node, rule in zip(nodes, rules, strict=True):
        if rule.name and rule.name in seen:
            reader.complain(node, "name", f"{rule.name} is the name of an earlier rule")
        if open_rule:
            reader.complain(node, "name", f"is never reached: rule {open_rule} takes every session")
        seen.add(rule.name)
        if rule.match == Match() and not open_rule:
            open_rule = rule.name or "above"
