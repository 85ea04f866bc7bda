"""The policy file: what is read, every mistake with its line, and reloading."""

from __future__ import annotations

import os
from pathlib import Path
from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reclaimer.policy import Action, Policy, Rule, Selector
from reclaimer.policy_file import (
    PolicyError,
    PolicyFile,
    default_policy,
    parse_policy,
)


def mistakes(text: str) -> list[str]:
    """What is wrong with a policy, one string per mistake."""
    with pytest.raises(PolicyError) as caught:
        parse_policy(dedent(text))
    return [str(mistake) for mistake in caught.value.mistakes]


def test_the_shipped_policy_suspends_everybody_after_two_minutes() -> None:
    policy = default_policy()
    assert policy.rules == (Rule("everybody", idle_after=120, warn_before=30, minimum_age=60),)
    assert policy.watch == Policy().watch


def test_rules_inherit_defaults_and_select() -> None:
    policy = parse_policy(
        dedent("""\
            version: 1
            defaults: {idle_after: 1h30m, warn_before: 5m}
            signals: {count: [kernels, cpu], cpu_cores: 2, stale_after: 90s}
            rules:
              - name: big
                match: {team: [a, b], server: "big-*", min_gpus: 4}
                idle_after: 20m
              - name: teaching
                match: {user: prof}
                action: keep
              - name: rest
        """)
    )
    big, teaching, rest = policy.rules
    assert big.match == Selector(team=("a", "b"), server=("big-*",), min_gpus=4)
    assert (big.idle_after, big.warn_before) == (1200, 300)
    assert teaching.action is Action.KEEP
    assert rest == Rule("rest", idle_after=5400, warn_before=300)
    assert policy.watch.counted == {"kernels", "cpu"}
    assert (policy.watch.cpu_cores, policy.watch.stale_after) == (2, 90)


HEAD = "version: 1\nrules:\n  - name: a\n"
"""Three lines; what a row adds begins at line 4."""

TABLE = [
    (
        "a typo in a key",
        "    idle_aftr: 2m\n",
        ["4: idle_aftr: unknown key", "did you mean idle_after?", "allowed: name, match"],
    ),
    (
        "a typo in a selector",
        "    match:\n      teem: x\n",
        ["5: teem: unknown key", "did you mean team?", "allowed: profile, team"],
    ),
    (
        "a typo in an action",
        "    action: susspend\n",
        ["4: action: susspend is not known", "did you mean suspend?", "allowed: suspend, keep"],
    ),
    ("an unknown key that resembles nothing", "    zzz: 1\n", ["4: zzz: unknown key; allowed:"]),
    ("a negative time", "    idle_after: -2m\n", ["4: idle_after: a time cannot be negative"]),
    ("a negative number", "    warn_before: -30\n", ["4: warn_before: a time cannot be negative"]),
    (
        "an absurd time",
        "    idle_after: 4000d\n",
        ["4: idle_after: must be between 1s and 90d, is 4000d"],
    ),
    (
        "no idle time at all",
        "    idle_after: 0\n",
        ["4: idle_after: must be between 1s and 90d, is 0"],
    ),
    (
        "a time without unit",
        "    idle_after: 120\n",
        ["4: idle_after: 120 has no unit; write 120s, 120m or 120h"],
    ),
    ("not a time", "    idle_after: soon\n", ["4: idle_after: `soon` is not a time"]),
    ("no time", "    idle_after:\n", ["4: idle_after: `` is not a time"]),
    (
        "the warning before the idle time",
        "    idle_after: 1m\n    warn_before: 2m\n",
        ["5: warn_before: the warning"],
    ),
    (
        "the idle time below the inherited warning",
        "    idle_after: 5s\n",
        ["4: idle_after: the warning"],
    ),
    ("a selector that is a word", "    match: everybody\n", ["4: match: must be a group of keys"]),
    (
        "a number as a name",
        "    match: {user: 7}\n",
        ["4: user: must be a name or a list of names"],
    ),
    (
        "half a GPU",
        "    match: {min_gpus: 0.5}\n",
        ["4: min_gpus: must be a whole number between 0"],
    ),
    ("an empty list of names", "    match: {user: []}\n", ["4: user: must be a name or a list"]),
    (
        "a rule that is never reached",
        "  - name: b\n",
        ["4: name: is never reached: rule a takes every session"],
    ),
    (
        "a name used twice",
        "    match: {user: x}\n  - name: a\n",
        ["5: name: a is the name of an earlier rule"],
    ),
    (
        "a rule without a name",
        "    match: {user: x}\n  - idle_after: 2m\n",
        ["5: name: must be a name"],
    ),
    ("a rule that is a word", "  - everybody\n", ["4: rules: every entry must be a group of keys"]),
    ("a key given twice", "    name: b\n", ['4: found duplicate key "name"']),
    ("a tab", "\tidle_after: 2m\n", ["4: found character"]),
    ("an open bracket", "    match: {user: [x\n", ["5: "]),
    (
        "an unknown signal",
        "signals:\n  count: [kernels, trminals]\n",
        ["5: count: trminals is not known; did you mean terminals?; allowed: kernels"],
    ),
    ("kernels left out", "signals:\n  count: [cpu]\n", ["5: count: must have kernels"]),
    (
        "CPU threshold of zero",
        "signals:\n  cpu_cores: 0\n",
        ["5: cpu_cores: must be a number between 0.001 and 1024, is 0"],
    ),
    (
        "CPU threshold that is a word",
        "signals:\n  cpu_cores: many\n",
        ["5: cpu_cores: must be a number"],
    ),
    (
        "a typo at the top",
        "rulez: []\n",
        ["4: rulez: unknown key; did you mean rules?; allowed: version"],
    ),
    ("defaults that are a list", "defaults: [1]\n", ["4: defaults: must be a group of keys"]),
]


@pytest.mark.parametrize(("sentence", "added", "expected"), TABLE, ids=[row[0] for row in TABLE])
def test_mistake(sentence: str, added: str, expected: list[str]) -> None:
    found = mistakes(HEAD + added)
    assert len(found) == 1, found
    for words in expected:
        assert words in found[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "1: must have the keys version and rules"),
        ("- 1\n", "1: must have the keys"),
        ("just words\n", "1: must have the keys"),
        ("rules: [{name: a}]\n", "1: version: must be 1"),
        ("\nversion: 2\nrules: []\n", "2: version: must be 1, the only version known here"),
        ("version: true\nrules: [{name: a}]\n", "1: version: must be 1"),
        ("version: 1\n", "1: rules: must be a list with at least one entry"),
        ("version: 1\nrules: []\n", "2: rules: must be a list with at least one entry"),
        ("version: 1\nrules: &a\n  - *b\n", "3: found undefined alias"),
    ],
)
def test_mistake_of_the_whole(text: str, expected: str) -> None:
    (found,) = mistakes(text)
    assert found.startswith(expected)


def test_all_mistakes_are_told_at_once_in_the_order_of_lines() -> None:
    found = mistakes(
        """\
        version: 1
        defaults:
          warn_before: -1s
        rules:
          - nam: a
            idle_after: 1x
        """
    )
    assert [mistake.split(":")[0] for mistake in found] == ["3", "5", "5", "6"]


def test_errors_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(HEAD + "    action: sleep\n")
    policy_file = PolicyFile(path)
    assert policy_file.current() is None
    assert str(policy_file.error).startswith(f"{path}:4: action: sleep")


def write(path: Path, text: str) -> None:
    """Replace a file as editors do."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text)
    temporary.replace(path)


def test_a_change_is_taken_up_and_a_mistake_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    policy_file = PolicyFile(path)
    write(path, HEAD)
    first = policy_file.current()
    assert first is not None
    assert first.rules[0].idle_after == 120

    write(path, HEAD + "    idle_after: 5m\n")
    second = policy_file.current()
    assert second is not None
    assert second.rules[0].idle_after == 300

    write(path, HEAD + "    idle_aftr: 9m\n")
    assert policy_file.current() is second
    assert policy_file.error is not None
    assert policy_file.error.mistakes[0].line == 4

    write(path, HEAD + "    idle_after: 9m\n")
    third = policy_file.current()
    assert third is not None
    assert third.rules[0].idle_after == 540
    assert policy_file.error is None


def test_a_file_that_vanishes_or_is_not_text_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    write(path, HEAD)
    policy_file = PolicyFile(path)
    before = policy_file.current()
    path.unlink()
    assert policy_file.current() is before
    assert "cannot be read: No such file" in str(policy_file.error)
    path.write_bytes(b"\xff\xfe\x00")
    assert policy_file.current() is before
    assert "not UTF-8" in str(policy_file.error)


def test_a_file_that_is_not_there_at_the_start_reclaims_nobody_until_it_is(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    policy_file = PolicyFile(path)
    assert policy_file.current() is None
    write(path, HEAD)
    assert policy_file.current() is not None


def test_an_edit_in_place_of_the_same_length_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(HEAD + "    idle_after: 5m\n")
    policy_file = PolicyFile(path)
    policy_file.current()
    path.write_text(HEAD + "    idle_after: 6m\n")
    os.utime(path, ns=(1, 1))
    current = policy_file.current()
    assert current is not None
    assert current.rules[0].idle_after == 360


def test_without_a_path_the_shipped_policy_is_in_force() -> None:
    assert PolicyFile(None).current() == default_policy()


@given(st.text(max_size=60))
def test_any_text_is_a_policy_or_a_policy_error(text: str) -> None:
    try:
        assert isinstance(parse_policy(text), Policy)
    except PolicyError as error:
        assert all(mistake.line >= 1 for mistake in error.mistakes)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["rules", "match", "name", "idle_after", "signals", "count", "user", "x"]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_any_document_is_a_policy_or_a_policy_error(document: object) -> None:
    import json

    try:
        parse_policy(json.dumps({"version": 1, "rules": document, "signals": document}))
    except PolicyError as error:
        assert error.mistakes
