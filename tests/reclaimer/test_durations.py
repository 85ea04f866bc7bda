"""Durations as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reclaimer.durations import format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30),
        ("2m", 120),
        ("1h30m", 5400),
        ("7d", 604800),
        ("1d2h3m4s", 93784),
        ("0", 0),
        (" 5m ", 300),
    ],
)
def test_parse(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not a time"),
        ("soon", "is not a time"),
        ("30m1h", "is not a time"),
        ("1.5h", "is not a time"),
        ("-2m", "negative"),
        ("90", "no unit"),
        ("1.5", "no unit"),
        ("2 m", "is not a time"),
        ("2M", "is not a time"),
    ],
)
def test_not_a_duration(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (-5, "0s"),
        (45.4, "45s"),
        (120, "2m"),
        (5400, "1h30m"),
        (3661, "1h1m"),
        (86405, "1d"),
        (277200, "3d5h"),
    ],
)
def test_format(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.integers(0, 10_000_000))
def test_what_is_shown_can_be_read_and_is_close(seconds: int) -> None:
    shown = parse_duration(format_duration(seconds))
    assert shown <= seconds
    assert seconds - shown < max(1.0, seconds / 24)
