"""The retention policy's file: what is read, and how mistakes are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from hub_config.retention_file import (
    RetentionError,
    default_retention_text,
    ensure_retention,
    parse_retention,
    read_retention,
)
from snapshot.retention import DAY, Match, Rule


def test_the_policy_that_is_shipped_deletes_no_suspended_session() -> None:
    policy = parse_retention(default_retention_text())
    assert policy.grace == DAY
    assert policy.rules == (Rule("everybody", Match(), 2, 7 * DAY, None, DAY, None, None),)


def test_rules_inherit_and_override() -> None:
    policy = parse_retention(
        """
version: 1
grace: 12h
defaults:
  keep_suspended_for: 90d
  bytes_per_user: 50GiB
rules:
  - name: students
    match: {team: [ml-*, bio], profile: gpu-1}
    keep_last: 0
    keep_suspended_for: 14d
    bytes_per_user: unlimited
    bytes_per_team: 1.5 TiB
  - name: all
    keep_last: unlimited
    keep_older_for: forever
"""
    )
    students, everybody = policy.rules
    assert policy.grace == DAY / 2
    assert students.match == Match(team=("ml-*", "bio"), profile=("gpu-1",))
    assert (students.keep_last, students.keep_suspended_for) == (0, 14 * DAY)
    assert (students.bytes_per_user, students.bytes_per_team) == (None, int(1.5 * 2**40))
    assert (everybody.keep_last, everybody.keep_older_for) == (None, None)
    assert (everybody.keep_suspended_for, everybody.bytes_per_user) == (90 * DAY, 50 * 2**30)


def wrong(text: str) -> str:
    with pytest.raises(RetentionError) as caught:
        parse_retention(text, "r.yaml")
    return str(caught.value)


RULES = "rules:\n  - name: all\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("version: 2\n", "r.yaml:1: version: must be 1"),
        ("[]", "r.yaml:1: must have the keys version and rules"),
        ("a: [", "r.yaml:"),
        ("version: 1\n", "rules: must be a list"),
        (f"version: 1\ngrace: 1h\n{RULES}", "r.yaml:2: grace: must be between 2h and 90d, is 1h"),
        (
            f"version: 1\ndefaults:\n  keep_lst: 3\n{RULES}",
            "r.yaml:3: keep_lst: unknown key; did you mean keep_last?",
        ),
        (
            f"version: 1\ndefaults:\n  keep_older_for: 7\n{RULES}",
            "r.yaml:3: keep_older_for: 7 has no unit; write 7s, 7m or 7h; or forever",
        ),
        (
            f"version: 1\n{RULES}    bytes_per_user: 50 gigs\n",
            "r.yaml:4: bytes_per_user: `50 gigs` is not a size",
        ),
        (f"version: 1\n{RULES}    keep_ended_for: 99999d\n", "must be forever or at most 3650d"),
        (f"version: 1\n{RULES}    keep_last: -1\n", "r.yaml:4: keep_last: must be a whole number"),
        (f"version: 1\n{RULES}    match: {{server: x}}\n", "server: unknown key"),
        (f"version: 1\n{RULES}  - name: more\n", "r.yaml:4: name: is never reached"),
        (
            "version: 1\nrules:\n  - {name: a, match: {user: x}}\n  - {name: a}\n",
            "r.yaml:4: name: a is the name of an earlier rule",
        ),
    ],
)
def test_mistakes_are_told_with_line_and_key(text: str, said: str) -> None:
    assert said in wrong(text)


def test_all_mistakes_are_told_at_once() -> None:
    text = f"version: 1\ngrace: soon\nx: 1\n{RULES}    keep_last: many\n"
    assert [line.split(":")[1] for line in wrong(text).splitlines()] == ["2", "3", "6"]


def test_the_file_is_the_operators_once_it_is_there(tmp_path: Path) -> None:
    path = tmp_path / "retention.yaml"
    assert read_retention(path).rules[0].name == "everybody"
    ensure_retention(path)
    path.write_text(path.read_text().replace("everybody", "mine"))
    ensure_retention(path)
    assert read_retention(path).rules[0].name == "mine"
    path.write_bytes(b"\xff")
    with pytest.raises(RetentionError, match="not UTF-8"):
        read_retention(path)
