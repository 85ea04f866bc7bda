"""How a start is refused: in words for the user that the Hub really shows, and without counting
as a failure of the Hub.

NotOpened
├── BadRequest       the options can never be satisfied (400)
├── PlaceKept        still in the queue when the wait ended; the place is kept (503)
├── NobodyKnows      the scheduler does not answer (503)
└── DidNotStart      the session ended or answered nothing while it was opened (500)
"""

from __future__ import annotations

from html import escape

from jupyterhub.spawner import SpawnException


class NotOpened(SpawnException):  # type: ignore[misc]
    """Base. The Hub shows `jupyterhub_message` on its pages and in the progress stream, and takes
    `message` for the log; both are set, because it reads different ones in different places."""

    http_status = 500
    label = "not-opened"

    def __init__(self, message: str, *, remedy: str = "") -> None:
        text = f"{message} {remedy}".strip()
        html = f"<p>{escape(message)}</p>" + (f"<p>{escape(remedy)}</p>" if remedy else "")
        super().__init__(text, reason=self.label, message_html=html, status_code=self.http_status)
        self.jupyterhub_message = text
        self.jupyterhub_html_message = html
        # tornado puts `reason` into the HTTP status line; there it is a label for metrics only
        self.remedy = remedy


class BadRequest(NotOpened):
    """What was asked for can never be given."""

    http_status = 400
    label = "bad-options"


class PlaceKept(NotOpened):
    """No GPU became free within the wait; the scheduler opens the session when it is its turn."""

    http_status = 503
    label = "queued"


class NobodyKnows(NotOpened):
    """The scheduler cannot be reached. Nothing was changed."""

    http_status = 503
    label = "scheduler-unavailable"


class DidNotStart(NotOpened):
    """The session's processes ended or never answered."""

    http_status = 500
    label = "session-failed"
