"""What the Hub sees of a session: start, stop, poll, progress and state as a few calls each.

`GpuSessionMixin` goes in front of any Spawner class and needs one thing from its subclass: the host
on which supervisors are started (`make_host`). The work is done in `opening` and `closing`, which
know no JupyterHub; here are the Hub's rules (what it calls when, what it forgets, what it deletes).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from jupyterhub import orm

from scheduler_bridge.errors import NotAllowed, Refused, SchedulerError, Unavailable
from scheduler_bridge.model.phases import TERMINAL, Desired
from scheduler_bridge.model.workload import Grant, Workload
from scheduler_bridge.plugin import SchedulerPlugin
from spawner import options
from spawner.choosing import SessionChoosing
from spawner.closing import Close, Closed, Closing
from spawner.hosting import HostError, Launch, LaunchFailed, SessionHost
from spawner.names import session_key
from spawner.opening import Ended, Opened, Opening, OtherSize, StillQueued
from spawner.profiles_model import Profile
from spawner.progress import ProgressLog, place_kept_sentence
from spawner.refusals import BadRequest, DidNotStart, NobodyKnows, NotOpened, PlaceKept
from spawner.rejoining import SessionRejoining
from spawner.state import SavedState, StateKey
from spawner.steps import Step
from spawner.watching import SessionWatch, url_of

READY_MARGIN_SECONDS = 5.0
ADOPT_PATIENCE_SECONDS = 20.0
CANCEL_PATIENCE_SECONDS = 0.7
"""The Hub sleeps one second after it cancelled a start, then looks again: be done before that."""


class GpuSessionMixin(SessionChoosing, SessionRejoining, SessionWatch):
    """A Hub server that is a session of the scheduler and survives being stopped."""

    _leftovers: ClassVar[dict[str, asyncio.Task[None]]] = {}

    def __init__(self, **kwargs: Any) -> None:
        self._progress = ProgressLog()
        self._ends_for_good = False
        self._is_not_ours = False
        self._keeps_memory = False
        self._client_scopes: list[str] | None = None
        self._old_token = ""
        super().__init__(**kwargs)

    # start

    async def start(self) -> str:
        """Open the session and return its URL. Raises subclasses of `NotOpened`.

        May be cancelled at any await; a lease or queue entry that nobody wants any more is given
        back then, in a task of its own that the next start waits for.
        """
        self._is_starting = True
        self._is_not_ours = self._ends_for_good = self._keeps_memory = False
        self._old_token = self._saved.token
        if self._progress.is_closed:
            self._progress = ProgressLog()
        try:
            await self._await_leftovers()
            opened = await self._open()
            if opened.is_continued:
                self._client_scopes = await self._allowed_scopes()
            if self._old_token != self.api_token:
                self._revoke(self._old_token)
            return url_of(opened.status.host_port)
        finally:
            self._is_starting = False
            self._progress.close()

    async def _open(self) -> Opened:
        opening = Opening(
            self.plugin,
            self.host,
            self._progress,
            make_launch=self.make_launch,
            clock=time.monotonic,
        )
        ready_wait = self.start_timeout - self.queue_wait - READY_MARGIN_SECONDS
        try:
            wish = await self._wish()
            opened = await opening.run(wish, queue_wait=self.queue_wait, ready_wait=ready_wait)
        except Unavailable as problem:
            live = await opening.attach(self.workload_id, self.look())
            if live is None:
                await self._give_back(opening)
                raise self._refusal(problem) from None
            opened = live
        except (SchedulerError, HostError, StillQueued, OtherSize, Ended) as problem:
            await self._give_back(opening)
            raise self._refusal(problem) from None
        except BaseException:
            await self._give_back(opening)
            raise
        if opened.is_continued and not self._gave_new_token(opened.workload_id):
            self._use_old_token(opened.workload_id)
        return opened

    async def make_launch(self, mode: str, workload: Workload, grant: Grant) -> Launch:
        saved = self._saved
        takes_new = saved.takes_new and saved.workload_id == workload.id
        if mode == "start" or (mode == "resume" and takes_new):
            self._saved = SavedState(workload.id, self.api_token, takes_new=True)
        else:
            self._use_old_token(workload.id)
        profile = self._profile_of(workload)
        return Launch(
            mode=mode,
            workload=workload,
            grant=grant,
            argv=(*self.cmd, *self.get_args()),
            environment=self.get_env() | profile.limits_as_environment(),
            base_url=self.server.base_url if self.server else "/",
            memory_bytes=profile.memory_bytes,
            cpus=profile.cpus,
            not_freezable_because=profile.why_not_freezable,
        )

    def _profile_of(self, workload: Workload) -> Profile:
        """The profile as the table has it now; one that was taken out of it limits nothing."""
        slug = workload.spec.profile
        return next((p for p in self.profiles if p.slug == slug), Profile(slug, slug, ""))

    def _gave_new_token(self, workload_id: str) -> bool:
        """Whether this start told the session's server the token that the Hub has just made."""
        return self._saved == SavedState(workload_id, self.api_token, takes_new=True)

    def _use_old_token(self, workload_id: str) -> None:
        """The session's processes hold an earlier token: tell the Hub, which then drops the one it
        just made and checks the old one. What a supervisor was told last is newer than what the
        Hub had saved, if it died in between."""
        is_ours = self._saved.workload_id == workload_id
        known = self._saved.token if is_ours else ""
        token = self.host.remembered_token(workload_id) or known
        if token:
            self.api_token = token
        else:
            self.log.warning("%s: the session's token is unknown", self.key)
        self._saved = SavedState(workload_id, token, is_ours and self._saved.takes_new)

    def _revoke(self, token: str) -> None:
        """Nobody who is meant to holds it any more."""
        known = orm.APIToken.find(self.user.db, token) if token else None
        if known is not None:
            self.user.db.delete(known)
            self.user.db.commit()

    async def _give_back(self, opening: Opening) -> None:
        """Free what the opening has booked, outside the reach of the Hub's cancel."""
        self._ends_for_good = opening.launched is Step.START
        self._is_not_ours = opening.launched not in (Step.START, Step.RESUME)
        self._keeps_memory = opening.has_memory
        task = asyncio.create_task(self._give_back_now(opening))
        key, kept = self.key, self._leftovers
        kept[key] = task
        task.add_done_callback(lambda done: kept.pop(key) if kept.get(key) is done else None)
        await asyncio.wait({task}, timeout=CANCEL_PATIENCE_SECONDS)

    async def _give_back_now(self, opening: Opening) -> None:
        try:
            await opening.give_back(actor=self.user.name, reason="the start was ended")
        except Exception as problem:
            self.log.warning(
                "%s: could not give back its place now (%s); the scheduler takes it back when the "
                "lease runs out",
                self.key,
                problem,
            )

    async def _await_leftovers(self) -> None:
        task = self._leftovers.get(self.key)
        if task is not None:
            await asyncio.wait({task}, timeout=15.0)

    def _refusal(self, problem: Exception) -> Exception:
        """The Hub's exception for what went wrong, in the user's words."""
        match problem:
            case StillQueued():
                return PlaceKept(place_kept_sentence(problem.workload))
            case OtherSize():
                return self._other_size(problem.workload, problem.why)
            case Ended() | LaunchFailed() | HostError():
                return DidNotStart(problem.message, remedy=problem.remedy)
            case Unavailable():
                return NobodyKnows(
                    "The scheduler does not answer, so no session can be opened right now.",
                    remedy="Your files and suspended sessions are safe. Try again in a minute.",
                )
            case Refused():
                return BadRequest(problem.message, remedy=problem.remedy)
            case NotAllowed():
                self.log.error("%s: the scheduler does not allow it: %s", self.key, problem)
                return DidNotStart(problem.message, remedy="Tell your administrator.")
            case SchedulerError():
                return DidNotStart(problem.message, remedy=problem.remedy or "Try again.")
        return problem

    def _other_size(self, workload: Workload, why: str) -> NotOpened:
        spec = workload.spec
        # the Hub has already stored what was asked for: let a plain retry mean the old session
        self.orm_spawner.user_options = {"profile": spec.profile, "gpus": spec.gpus}
        if why:
            return BadRequest(why, remedy="The session is kept as it is.")
        return BadRequest(
            f"There is already a session here with {options.count_gpus(spec.gpus)} "
            f"(profile {spec.profile}, team {spec.team}), and its memory would be lost.",
            remedy="Resume it, or discard it on the home page before you choose another size or "
            "team.",
        )

    async def _allowed_scopes(self) -> list[str]:
        scopes = await self._get_oauth_client_allowed_scopes()  # type: ignore[attr-defined]
        return list(scopes)

    # stop

    async def stop(self, now: bool = False) -> None:
        """Suspend the session, or end it where it cannot be frozen. Never raises.

        Returns when the memory is stored, when the session has ended, or when neither was possible:
        then it lives on, `poll` says so, and the Hub starts its server again, which finds it.
        """
        try:
            closed = await self._close()
        except Exception:
            self.log.exception("%s: stopping failed; the session was left as it is", self.key)
            self.rejoin_soon()
            return
        if closed.result is Close.STILL_RUNNING:
            self.log.warning("%s still runs: %s %s", self.key, closed.why, closed.remedy)
            self.rejoin_soon()
        else:
            self.log.info("%s: %s", self.key, closed.result)

    async def _close(self) -> Closed:
        if not self.workload_id or self._is_not_ours:
            # the start failed before it changed anything: what was there stays as it was
            return Closed(Close.ENDED)
        seen = self.look()
        if seen.sandbox_alive and not seen.supervisor_alive:
            await asyncio.wait({self._adopt()}, timeout=ADOPT_PATIENCE_SECONDS)
        closing = Closing(
            self.plugin, self.host, self.workload_id, actor=self.user.name, clock=time.monotonic
        )
        reason = self.host.why_not_freezable(self.workload_id)
        if self._ends_for_good or reason:
            return await closing.stop(reason=reason or "its start was ended", limit=self.stop_wait)
        return await closing.suspend(reason="the server was stopped", limit=self.suspend_wait)

    @property
    def will_resume(self) -> bool:
        """Whether the Hub must keep the token that this session's processes hold: its memory was
        committed (or its snapshot is still there after a failed resume), or it still lives."""
        if not self._saved.token or self.api_token != self._saved.token:
            return False
        seen = self.look()
        return seen.is_live or seen.is_suspended or self._keeps_memory

    def start_polling(self) -> None:
        """The Hub calls this right after a start: the moment to mend what a reused token broke."""
        self._restore_client_scopes()
        super().start_polling()

    def _restore_client_scopes(self) -> None:
        """After a start that reused a token, the Hub has emptied the scopes that its OAuth client
        may be given (seen in 6.1.1); put them back before anybody logs in."""
        client = self.orm_spawner.oauth_client if self._client_scopes is not None else None
        if client is not None:
            client.allowed_scopes = list(self._client_scopes or ())

    # state, progress

    def get_state(self) -> dict[str, Any]:
        state: dict[str, Any] = super().get_state()  # type: ignore[misc]
        return state | self._saved.as_json(self._state_key())

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)  # type: ignore[misc]
        self._saved = SavedState.from_json(state, self._state_key())
        self.api_token = self._saved.token

    def _state_key(self) -> StateKey:
        return StateKey(Path(self.state_secret_file).read_bytes().strip())

    async def progress(self) -> AsyncIterator[dict[str, object]]:
        """What is happening, from the beginning, for each page that asks."""
        async for event in self._progress.read():
            yield event.as_hub_event()

    # rename, delete

    async def rename(self, old_name: str, new_name: str) -> None:
        """Refused while there is a session: its processes know the old name and URL."""
        workload = await self.plugin.find(session_key(self.hub_name, self.user.name, old_name))
        if workload is not None:
            raise BadRequest(
                f"Server {old_name!r} has a session ({workload.phase}) that knows its name.",
                remedy="Discard it on the home page, then rename the server.",
            )

    async def delete_forever(self) -> None:
        """The server or its user is removed: end the session, delete every snapshot of it."""
        workload = await self.plugin.find(self.key)
        if workload is not None:
            await self.discard(workload)

    # fork

    def takes_new_identity(self, workload: Workload) -> bool:
        """Whether the server in this session's memory can be told to be another one."""
        return self._saved.takes_new and self._saved.workload_id == workload.id

    def continue_as(self, workload: Workload, *, options: dict[str, Any] | None) -> None:
        """Be the server of a suspended session that was made for it (a fork)."""
        self._saved = SavedState(workload.id, takes_new=True)
        self.orm_spawner.state = self.get_state()
        self.orm_spawner.user_options = dict(options or {})
        self.user.db.commit()

    def void_token(self) -> None:
        """Make the token in a suspended session's memory worthless; its resume brings a new one."""
        self._revoke(self._saved.token)
        self._saved = replace(self._saved, token="")
        self.orm_spawner.state = self.get_state()
        self.user.db.commit()

    async def discard(self, workload: Workload) -> None:
        """End the session, delete what is stored of it, and revoke the token that lies in there.
        Raises `SchedulerError`, `HostError`."""
        await discard(self.plugin, self.host, workload, actor=self.user.name, limit=self.stop_wait)
        if self._saved.workload_id == workload.id:
            self._revoke(self._saved.token)
        self._saved = SavedState()
        self.orm_spawner.state = self.get_state()
        self.user.db.commit()


async def discard(
    plugin: SchedulerPlugin, host: SessionHost, workload: Workload, *, actor: str, limit: float
) -> None:
    """End a session without keeping anything of its memory; files stay. Raises `SchedulerError`,
    and `HostError` when it has not ended within `limit` seconds (nothing is deleted then)."""
    reason = "discarded by its owner"
    workload = await plugin.desire(workload.id, Desired.STOPPED, actor=actor, reason=reason)
    deadline = time.monotonic() + limit
    while workload.phase not in TERMINAL:
        left = deadline - time.monotonic()
        if left <= 0:
            raise HostError(
                f"The session did not end within {limit:.0f} s.", remedy="Try again in a minute."
            )
        workload = await plugin.wait(workload.id, version=workload.version, timeout=left)
    await host.forget(workload)


__all__ = ["GpuSessionMixin", "discard"]
