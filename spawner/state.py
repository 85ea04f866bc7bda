"""What the Hub's database keeps of a session. The token in it is encrypted.

Whoever may read server state through the Hub's API sees only the sealed form. The key comes from a
secret file of the Hub; with another key the token is unknown, never wrong.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

from cryptography.fernet import Fernet, InvalidToken
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

_PURPOSE = b"hubernate spawner state v1"


class StateKey:
    """Seals and opens short secrets with a key derived from the Hub's secret."""

    def __init__(self, secret: bytes) -> None:
        if len(secret) < 32:
            raise ValueError("The secret for session tokens must have 32 bytes or more.")
        derived = HKDF(algorithm=SHA256(), length=32, salt=None, info=_PURPOSE).derive(secret)
        self._fernet = Fernet(base64.urlsafe_b64encode(derived))

    def seal(self, token: str) -> str:
        """The encrypted form; empty stays empty."""
        return self._fernet.encrypt(token.encode()).decode() if token else ""

    def open(self, sealed: str) -> str:
        """The token, or an empty string when it was sealed with another key or changed."""
        try:
            return self._fernet.decrypt(sealed.encode()).decode() if sealed else ""
        except InvalidToken:
            return ""


@dataclass(frozen=True, slots=True)
class SavedState:
    """The session this server had last. It survives stops: a resume needs it.

    `token` is the API token that the processes of that session hold; `takes_new` tells that its
    server takes a new one at a resume (those that were started by an older version do not).
    """

    workload_id: str = ""
    token: str = ""
    takes_new: bool = False

    def as_json(self, key: StateKey) -> dict[str, Any]:
        """For `get_state`: nothing when there was no session yet."""
        if not self.workload_id:
            return {}
        return {
            "workload_id": self.workload_id,
            "sealed_token": key.seal(self.token),
            "takes_new": self.takes_new,
        }

    @staticmethod
    def from_json(state: dict[str, Any], key: StateKey) -> SavedState:
        """For `load_state`: tolerant of states that others wrote."""
        workload_id = state.get("workload_id")
        sealed = state.get("sealed_token")
        return SavedState(
            workload_id=workload_id if isinstance(workload_id, str) else "",
            token=key.open(sealed) if isinstance(sealed, str) else "",
            takes_new=state.get("takes_new") is True,
        )
