"""Time passes: work arrives, runs, ends, yields, and a policy decides.

Policies are told of what happened in order of time; they decide at most once per tick. What they
decide is checked, and what breaks a rule is counted and not done (but preemption within protection,
which is counted and done, as some real schedulers do it).
"""

from __future__ import annotations

import time
from dataclasses import replace
from heapq import heapify, heappop, heappush
from itertools import count
from math import floor, inf
from typing import Final

from scheduler_bridge.simulator.contract import MakePolicy, Setting
from scheduler_bridge.simulator.jobs import DAY, Costs, Scenario, SimJob, Takes
from scheduler_bridge.simulator.meters import FleetMeter, TeamMeter
from scheduler_bridge.simulator.outcome import Losses, Outcome, Preempted, Record

PING_PONG_SECONDS: Final = DAY
"""A preempts B, which preempted A less than this ago."""
_ARRIVE, _FINISH, _YIELD = range(3)


class Run:
    """One job on its GPUs. `works_from` is when useful work begins, `saved` what it begins with."""

    __slots__ = ("job", "leaves_at", "saved", "since", "takes", "works_from")

    def __init__(self, job: SimJob, takes: Takes, since: float, works_from: float, saved: float):
        self.job, self.takes, self.since = job, takes, since
        self.works_from, self.saved = works_from, saved
        self.leaves_at = inf

    def done_by(self, now: float) -> float:
        """Useful work in all, in seconds."""
        return self.saved + max(0.0, now - self.works_from)

    def kept_by(self, now: float) -> float:
        """What of that a preemption leaves."""
        if self.job.freezes:
            return self.done_by(now)
        return (
            self.saved + self._checkpoints(now) * self.job.checkpoint_every if self._saves else 0.0
        )

    def saved_at(self, now: float) -> float | None:
        """When the latest checkpoint was taken."""
        taken = self._checkpoints(now) if self._saves else 0
        return self.works_from + taken * self.job.checkpoint_every if taken else None

    @property
    def _saves(self) -> bool:
        return self.job.checkpoint_every < inf

    def _checkpoints(self, now: float) -> int:
        return max(0, floor((now - self.works_from) / self.job.checkpoint_every))


class World:
    """One simulation. Not to be run twice."""

    def __init__(
        self,
        scenario: Scenario,
        make: MakePolicy,
        *,
        costs: Costs | None = None,
        tick: float = 10.0,
    ) -> None:
        if not 0 < tick < inf:
            raise ValueError("A tick has to be more than 0 seconds.")
        self.scenario, self.fleet, self.tick = scenario, scenario.fleet, tick
        self.costs = costs or scenario.costs
        self.policy = make(Setting(self.fleet, self.costs, self))
        self.free = [self.fleet.gpus_per_node] * self.fleet.nodes
        self.waiting: dict[str, SimJob] = {}
        self.runs: dict[str, Run] = {}
        self.records: dict[str, Record] = {}
        self.meter = FleetMeter(self.fleet.capacity)
        self.teams: dict[str, TeamMeter] = {
            name: TeamMeter(share * self.fleet.capacity)
            for name, share in self.fleet.shares.items()
        }
        self.outcome = Outcome(
            scenario.name,
            self.policy.name,
            self.fleet,
            records=self.records,
            meter=self.meter,
            teams=self.teams,
            losses=Losses(),
        )
        self._numbers = count()
        self._heap: list[tuple[float, int, int, SimJob | Run]] = []
        self._held_seconds = 0.0
        self._pairs: dict[tuple[str, str], float] = {}
        self._asked: dict[str, float] = {}

    def saved_at(self, job_id: str, now: float) -> float | None:
        """See `Reports`."""
        run = self.runs.get(job_id)
        return run.saved_at(now) if run else None

    def run(self) -> Outcome:
        """Play the scenario to its end. Gives the outcome, whose meters stand at that moment."""
        begun = time.process_time()
        self._heap = [
            (at, next(self._numbers), _ARRIVE, job) for at, job in self.scenario.source.first()
        ]
        heapify(self._heap)
        self._play()
        self._finish()
        self.outcome.seconds = time.process_time() - begun
        return self.outcome

    def _play(self) -> None:
        heap, until, tick = self._heap, self.scenario.until, self.tick
        decided, due, wake = -inf, inf, inf
        while True:
            at = heap[0][0] if heap else inf
            next_decision = min(due, max(wake, decided + tick))
            now = min(at, next_decision)
            if now >= until or now == inf:
                self._advance(until if until < inf else self.meter.now)
                return
            self._advance(now)
            if at <= next_decision:
                if self._happen(*heappop(heap)[2:]):
                    due = min(due, max(now, decided + tick))
            else:
                self._decide(now)
                decided, due = now, inf
                asked = self.policy.next_wake(now)
                wake = inf if asked is None else asked

    def _advance(self, now: float) -> None:
        self.meter.advance(now)
        self.meter.sample(self.teams)

    def _happen(self, kind: int, what: SimJob | Run) -> bool:
        """Whether it was more than the shadow of a run that is over."""
        if isinstance(what, SimJob):
            self._arrive(what)
        elif self.runs.get(what.job.spec.id) is not what:
            return False
        elif kind == _FINISH and what.job.freezes and what.leaves_at < inf:
            return False  # it is frozen already
        elif kind == _FINISH:
            self._end(what)
        else:
            self._yield(what)
        self.outcome.events += 1
        return True

    # -- work --------------------------------------------------------------------------------

    def _arrive(self, job: SimJob) -> None:
        now, spec = self.meter.now, job.spec
        if spec.id in self.records:
            raise ValueError(f"There are two jobs with the id {spec.id}; ids have to be unique.")
        self.records[spec.id] = Record(spec, job.is_debug, now, now)
        team = self._team(spec.team)
        team.demand += spec.size
        self._queue(job)

    def _queue(self, job: SimJob) -> None:
        self.waiting[job.spec.id] = job
        self.meter.waiting += job.spec.size
        self.policy.submit(job.spec, self.meter.now)

    def _end(self, run: Run) -> None:
        spec = run.job.spec
        self._vacate(run)
        self._team(spec.team).demand -= spec.size
        self.records[spec.id].ended = self.meter.now
        self.policy.finished(spec.id, self.meter.now)
        follows = self.scenario.source.after(run.job, self.meter.now)
        if follows is not None:
            self._push(follows[0], _ARRIVE, follows[1])

    def _yield(self, run: Run) -> None:
        now, job = self.meter.now, run.job
        self._vacate(run)
        worked_until = now - self.costs.suspend if job.freezes else now
        kept = min(run.kept_by(worked_until), job.duration)
        record, losses, size = self.records[job.spec.id], self.outcome.losses, job.spec.size
        losses.redone += (run.done_by(worked_until) - kept) * size
        losses.suspending += (now - worked_until) * size
        record.saved, record.queued = kept, now
        again = replace(job, spec=replace(job.spec, attempts=job.spec.attempts + 1))
        self.policy.yielded(job.spec.id, now)
        self._queue(again)

    def _vacate(self, run: Run) -> None:
        """The one place where GPUs become free."""
        now, spec = self.meter.now, run.job.spec
        del self.runs[spec.id]
        for node, gpus in run.takes:
            self.free[node] += gpus
        self.meter.busy -= spec.size
        self._held_seconds += (now - run.since) * spec.size
        team = self._team(spec.team)
        team.held -= spec.size
        team.held_unallocated -= 0 if spec.is_allocated else spec.size

    def _team(self, name: str) -> TeamMeter:
        """Its meter, brought up to now. A team without a share is owed nothing."""
        meter = self.teams.get(name)
        if meter is None:
            meter = self.teams[name] = TeamMeter(0.0, since=self.meter.now)
        meter.advance(self.meter.now)
        return meter

    def _push(self, at: float, kind: int, what: SimJob | Run) -> None:
        heappush(self._heap, (at, next(self._numbers), kind, what))

    # -- decisions ---------------------------------------------------------------------------

    def _decide(self, now: float) -> None:
        self.outcome.decisions += 1
        decisions = self.policy.decide(now)
        for victim, preemptor in decisions.preempt:
            self._preempt(victim, preemptor, now)
        for job_id, takes in decisions.starts:
            self._start(job_id, takes, now)
        full = self.fleet.gpus_per_node
        self.meter.broken = sum(gpus for gpus in self.free if gpus < full)
        if sum(self.free) + self.meter.busy != self.fleet.capacity:
            self.outcome.violations["conservation"] += 1

    def _preempt(self, victim: str, preemptor: str, now: float) -> None:
        run = self.runs.get(victim)
        if run is None or run.leaves_at < inf or preemptor not in self.waiting:
            self.outcome.violations["preempted_nothing"] += 1
            return
        if now < run.since + run.job.spec.min_runtime:
            self.outcome.unprotected += 1
            if self.policy.promises_protection:
                self.outcome.violations["protection"] += 1
        run.leaves_at = now + (self.costs.suspend if run.job.freezes else self.costs.grace)
        self._push(run.leaves_at, _YIELD, run)
        self.outcome.preempted.append(Preempted(now, victim, preemptor))
        if now - self._pairs.get((preemptor, victim), -inf) < PING_PONG_SECONDS:
            self.outcome.ping_pong += 1
        self._pairs[victim, preemptor] = now
        self._asked.setdefault(preemptor, now)

    def _start(self, job_id: str, takes: Takes, now: float) -> None:
        job = self.waiting.get(job_id)
        fault = self._fault(job, takes)
        if job is None or fault:
            self.outcome.violations[fault] += 1
            return
        del self.waiting[job_id]
        for node, gpus in takes:
            self.free[node] -= gpus
        spec, record = job.spec, self.records[job_id]
        self.meter.waiting -= spec.size
        self.meter.busy += spec.size
        team = self._team(spec.team)
        team.held += spec.size
        team.held_unallocated += 0 if spec.is_allocated else spec.size
        self._note_wait(record, now)
        restore = self.costs.restore if spec.attempts else 0.0
        self.outcome.losses.starting += self.costs.start * spec.size
        self.outcome.losses.restoring += restore * spec.size
        run = Run(job, takes, now, now + self.costs.start + restore, record.saved)
        self.runs[job_id] = run
        self._push(run.works_from + job.duration - run.saved, _FINISH, run)

    def _fault(self, job: SimJob | None, takes: Takes) -> str:
        """Which rule a start would break."""
        if job is None:
            return "started_nothing"
        nodes = {node for node, _ in takes}
        shape = [gpus for _, gpus in takes] == [job.spec.gpus] * job.spec.nodes
        if not shape or len(nodes) < len(takes):
            return "gang_broken"
        if any(not 0 <= node < len(self.free) for node in nodes):
            return "no_such_node"
        return "gpu_twice" if any(self.free[node] < gpus for node, gpus in takes) else ""

    def _note_wait(self, record: Record, now: float) -> None:
        queued = now if record.queued is None else record.queued
        if record.started is None:
            record.started = now
        else:
            record.returns.append(now - queued)
        record.queued = None
        if (asked := self._asked.pop(record.spec.id, None)) is not None:
            self.outcome.served.append(now - asked)

    def _finish(self) -> None:
        """Bring all meters up to the end, and check that no GPU-second is lost or made."""
        now = self.outcome.ended_at = self.meter.now
        for meter in self.teams.values():
            meter.advance(now)
        held = self._held_seconds + sum(
            (now - run.since) * run.job.spec.size for run in self.runs.values()
        )
        by_team = sum(meter.delivered for meter in self.teams.values())
        tolerance = 1e-6 * max(1.0, self.meter.busy_seconds)
        if max(abs(held - self.meter.busy_seconds), abs(held - by_team)) > tolerance:
            self.outcome.violations["conservation"] += 1
