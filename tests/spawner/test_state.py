"""The token in the Hub's database is unreadable without the Hub's secret, and never wrong."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from spawner.state import SavedState, StateKey

KEY = StateKey(b"k" * 32)
SAVED = SavedState("s-1", "the-token", takes_new=True)


def test_it_comes_back_and_does_not_show() -> None:
    state = SAVED.as_json(KEY)
    assert "the-token" not in json.dumps(state)
    assert SavedState.from_json(json.loads(json.dumps(state)), KEY) == SAVED


def test_nothing_is_kept_of_nothing() -> None:
    assert SavedState().as_json(KEY) == {}
    assert SavedState.from_json({}, KEY) == SavedState()


def test_another_key_and_a_changed_token_give_no_token() -> None:
    state = SAVED.as_json(KEY)
    assert SavedState.from_json(state, StateKey(b"x" * 32)) == replace(SAVED, token="")
    changed = state | {"sealed_token": state["sealed_token"][:-4] + "AAA="}
    assert SavedState.from_json(changed, KEY).token == ""


def test_a_session_of_an_older_version_keeps_its_token() -> None:
    older = {n: v for n, v in SAVED.as_json(KEY).items() if n != "takes_new"}
    assert SavedState.from_json(older, KEY) == replace(SAVED, takes_new=False)


@pytest.mark.parametrize("state", [{"workload_id": 3}, {"sealed_token": ["x"]}, {"pid": 7}])
def test_states_of_other_spawners_are_no_trouble(state: dict[str, object]) -> None:
    assert SavedState.from_json(state, KEY) == SavedState()


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        StateKey(b"short")
