"""Keys never collide; names stay readable."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spawner.names import server_title, session_key, session_name

PART = st.text(alphabet="ab/%:.-_ @ü", max_size=6)


def test_the_key_is_the_contracts() -> None:
    assert session_key("local", "ada", "") == "session:local/ada/"
    assert session_key("local", "ada@uni.org", "big-model") == "session:local/ada@uni.org/big-model"


@given(st.tuples(PART, PART, PART), st.tuples(PART, PART, PART))
def test_two_servers_never_share_a_key(a: tuple[str, str, str], b: tuple[str, str, str]) -> None:
    assert (session_key(*a) == session_key(*b)) == (a == b)


def test_names_are_for_people() -> None:
    assert session_name("ada", "") == "ada"
    assert session_name("ada", "a/b ü") == "ada.a-b--"
    assert len(session_name("a" * 100, "b")) == 60
    assert server_title("") == "Your server"
    assert "exp" in server_title("exp")
