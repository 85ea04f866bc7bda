"""The token in the Hub's database is unreadable without the Hub's secret, and never wrong."""

from __future__ import annotations

import json

import pytest

from spawner.state import SavedState, StateKey

KEY = StateKey(b"k" * 32)
SAVED = SavedState("s-1", "the-token")


def test_it_comes_back_and_does_not_show() -> None:
    state = SAVED.as_json(KEY)
    assert "the-token" not in json.dumps(state)
    assert SavedState.from_json(json.loads(json.dumps(state)), KEY) == SAVED


def test_nothing_is_kept_of_nothing() -> None:
    assert SavedState().as_json(KEY) == {}
    assert SavedState.from_json({}, KEY) == SavedState()


def test_another_key_and_a_changed_token_give_no_token() -> None:
    state = SAVED.as_json(KEY)
    assert SavedState.from_json(state, StateKey(b"x" * 32)) == SavedState("s-1", "")
    changed = state | {"sealed_token": state["sealed_token"][:-4] + "AAA="}
    assert SavedState.from_json(changed, KEY).token == ""


@pytest.mark.parametrize("state", [{"workload_id": 3}, {"sealed_token": ["x"]}, {"pid": 7}])
def test_states_of_other_spawners_are_no_trouble(state: dict[str, object]) -> None:
    assert SavedState.from_json(state, KEY) == SavedState()


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        StateKey(b"short")
