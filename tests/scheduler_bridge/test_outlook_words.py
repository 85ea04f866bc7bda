"""Sentences about what would start work now."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scheduler_bridge.policy.alternatives import Alternative, ChangeKind
from scheduler_bridge.policy.outlook_words import change_sentence, change_values, lasting
from scheduler_bridge.policy.trials import Moment, Outcome
from scheduler_bridge.policy.values import Pending
from tests.scheduler_bridge.fleets import pending

ASKED = pending(
    "p", 8, nodes=4, min_runtime=28800.0, clusters=("east",), models=("H100",), team="red"
)
SMALL = pending("p", 8, min_runtime=28800.0)
KINDS = ChangeKind


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0, "none"),
        (900.0, "15 min"),
        (2820.0, "47 min"),
        (28800.0, "8 h"),
        (5400.0, "1 h 30 min"),
        (108000.0, "1 d 6 h"),
    ],
)
def test_how_long_something_lasts(seconds: float, words: str) -> None:
    assert lasting(seconds) == words


@pytest.mark.parametrize(
    ("kind", "asked", "different", "words"),
    [
        (KINDS.GPUS, SMALL, {"gpus": 6}, "2 GPUs fewer (6 instead of 8)"),
        (KINDS.GPUS, SMALL, {"gpus": 7}, "1 GPU fewer (7 instead of 8)"),
        (KINDS.GPUS, ASKED, {"gpus": 6}, "2 GPUs fewer on each machine (6 instead of 8)"),
        (KINDS.NODES, ASKED, {"nodes": 3}, "1 machine fewer (3 instead of 4)"),
        (KINDS.NODES, ASKED, {"nodes": 1}, "3 machines fewer (1 instead of 4)"),
        (KINDS.PROTECTION, ASKED, {"min_runtime": 900.0}, "min runtime 15 min instead of 8 h"),
        (
            KINDS.PROTECTION,
            ASKED,
            {"min_runtime": 0.0},
            "no min runtime instead of 8 h: it then yields first",
        ),
        (
            KINDS.PROTECTION,
            replace(ASKED, min_runtime=0.0),
            {"min_runtime": 900.0},
            "min runtime 15 min instead of none",
        ),
        (KINDS.CLUSTER, ASKED, {"clusters": ("east", "west")}, "cluster west as well"),
        (KINDS.MODEL, ASKED, {"models": ("H100", "A100")}, "GPU model A100 as well"),
        (KINDS.TEAM, ASKED, {"team": "blue"}, "the share of team blue instead of red's"),
    ],
)
def test_each_kind_is_said(
    kind: ChangeKind, asked: Pending, different: dict[str, Any], words: str
) -> None:
    change = Alternative(kind, asked, replace(asked, **different), Outcome.NOW)
    assert change_sentence(change) == words


@pytest.mark.parametrize(
    ("moment", "words"),
    [
        (Moment(5.0, ("a",), ends=False), "as it is, when the last protection in the way ends: a"),
        (
            Moment(5.0, ("a", "b", "c", "d", "e"), ends=True),
            "as it is, when the longest that it may run ends: a, b, c and 2 more",
        ),
        (Moment(5.0, (), ends=False), "as it is"),
    ],
)
def test_the_moment_is_said(moment: Moment, words: str) -> None:
    change = Alternative(KINDS.MOMENT, ASKED, ASKED, Outcome.WAITS, 1.0, moment)
    assert change_sentence(change) == words


def test_only_what_differs_is_a_value_of_the_change() -> None:
    assert change_values(ASKED, ASKED) == {}
    changed = replace(ASKED, gpus=2, min_runtime=0.0, models=("H100", "A100"))
    assert change_values(ASKED, changed) == {
        "gpus": 2,
        "min_runtime_seconds": 0.0,
        "gpu_models": ("H100", "A100"),
    }
