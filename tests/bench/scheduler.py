"""`make bench-scheduler`: the engine with a fleet of many clusters.

5 clusters, 2,000 machines, 16,000 GPUs, 60 teams; a tenth of the waiting work are gangs of 16 to 512
GPUs. Everything goes through the scheduler's own functions (admission, columns, plan, leases, events).

Engine figures, without a database: `engine_decisions_per_s` (workloads placed or found to have no
place, while an empty fleet fills from `pending` waiting ones), `arrival_p99_ms` (one arrival into the full
system, from submission to its place or the reason why not), `gang_preempt_ms` (a gang of 512 GPUs for
which others are asked to yield), `why_p99_ms`, `growth` (a pass at 10,000 running against one at 1,000),
`rss_mib`. With a database (SQLite on disk): `durable_admissions_per_s` (waiting workloads that get their
place and lease, written before anybody hears of it, many in one transaction),
`durable_submissions_per_s` (one transaction each: a submission that was answered is kept), `restart_s`
(from the file to the first pass decided). Milliseconds and seconds; medians where nothing else is said.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from scheduler_bridge.engine.books import Books
from scheduler_bridge.engine.scheduler import Scheduler
from scheduler_bridge.engine.settings import ManualClock, Settings
from scheduler_bridge.engine.teams import change
from scheduler_bridge.model.phases import Kind, Phase
from scheduler_bridge.model.teams import Proposal, Team
from scheduler_bridge.model.workload import Gpu, Node, Priority, Workload, WorkloadSpec
from scheduler_bridge.policy.columns import group_of
from scheduler_bridge.store.base import Store
from scheduler_bridge.store.opening import open_database
from tests.fakes.forgetful_store import StoreThatForgets

TEAMS = 60
CLUSTERS = 5
SIZES = (1, 1, 1, 1, 2, 4, 8)
GANG_NODES = (2, 4, 8, 16, 32, 64)
GANG_TEAMS = tuple(f"t{n}" for n in range(10))
"""Away at first: what is guaranteed to them is lent to work without protection until they come."""
RUNTIMES = (0.0, 900.0, 28800.0)


def machines(count: int) -> tuple[Node, ...]:
    """Machines of eight GPUs, twenty in a rack."""
    return tuple(
        Node(
            f"n{n}",
            tuple(Gpu(f"n{n}g{g}", f"n{n}", g, "H200", f"/dev/nvidia{g}") for g in range(8)),
            cluster=f"c{n % CLUSTERS}",
            rack=f"r{n // 20}",
        )
        for n in range(count)
    )


def teams() -> tuple[Team, ...]:
    """Equal shares; those who are away have guaranteed GPUs."""
    return tuple(
        Team(f"t{n}", share_percent=100 / TEAMS, guaranteed=512 if f"t{n}" in GANG_TEAMS else 0)
        for n in range(TEAMS)
    )


class Bench:
    """One scheduler, and work drawn from a fixed seed."""

    def __init__(self, nodes: int, store: Store, seed: int = 1) -> None:
        self.random = random.Random(seed)
        self.clock = ManualClock()
        self.books = Books(store, self.clock, machines(nodes))
        self.scheduler = Scheduler(self.books, Settings())
        self.scheduler.wake = lambda: None
        if not self.books.change_sets:
            change(self.scheduler, Proposal("bench", created=teams()), author="bench")
        self.count = 0

    def spec(self, *, gangs: bool = True, **more: Any) -> WorkloadSpec:
        """A job as teams submit them."""
        rng = self.random
        gang = gangs and rng.random() < 0.1
        values: dict[str, Any] = {
            "team": f"t{rng.randrange(len(GANG_TEAMS), TEAMS)}",
            "gpus": 8 if gang else rng.choice(SIZES),
            "nodes": rng.choice(GANG_NODES) if gang else 1,
            "priority": rng.choice((Priority.NORMAL, Priority.NORMAL, Priority.HIGH)),
            "min_runtime_seconds": rng.choice(RUNTIMES),
        }
        self.count += 1
        name = f"j{self.count}"
        return WorkloadSpec(Kind.JOB, name, "ada", command=("x",), **(values | more))

    def submit(self, spec: WorkloadSpec) -> Workload:
        """It waits from now on."""
        return self.scheduler.submit(spec, key=spec.name, actor="bench")

    def decided(self, workload: Workload) -> None:
        """Tick until it has its place, or the planner has come to it and found none."""
        columns = self.scheduler._board.columns
        while True:
            self.scheduler.tick()
            item = columns.queue.items.get(workload.id)
            if item is None or group_of(item) in columns.stuck or item.id in columns.promised:
                return
            if not self.scheduler.unfinished:
                return

    def running(self) -> list[Workload]:
        """Whatever has a place."""
        return [w for w in self.books.workloads.values() if w.lease is not None]

    def all_run(self) -> None:
        """Everything placed runs: it is preemptible from the end of its protection on."""
        with self.books.draft() as draft:
            for workload in self.running():
                if workload.phase is Phase.STARTING:
                    draft.move(workload, Phase.RUNNING, cause="runs", actor="bench")
        for record in list(self.books.leases.values()):
            if record.taken_at is None:
                taken = replace(record, taken_at=self.clock.now())
                self.books.leases[record.lease.id] = taken


def timed(what: Callable[[], object]) -> float:
    """Seconds that it takes."""
    began = perf_counter()
    what()
    return perf_counter() - began


def filled(nodes: int, pending: int, store: Store) -> tuple[Bench, float]:
    """A full system, and how long one pass took to fill it."""
    bench = Bench(nodes, store)
    for _ in range(pending):
        bench.submit(bench.spec())
    seconds = timed(bench.scheduler.settle)
    bench.all_run()
    bench.scheduler.settle()
    return bench, seconds


def engine(nodes: int, running: int, pending: int) -> dict[str, float]:
    """Figures without a database."""
    bench, seconds = filled(nodes, running + pending, StoreThatForgets())
    figures = {"engine_decisions_per_s": round((running + pending) / seconds)}
    print(f"filled: {len(bench.running())} run, {pending + running - len(bench.running())} wait")
    arrivals = []
    for _ in range(300):
        bench.clock.advance(0.5)
        began = perf_counter()
        bench.decided(bench.submit(bench.spec()))
        arrivals.append((perf_counter() - began) * 1000)
        bench.scheduler.settle()
    figures["arrival_p50_ms"] = round(median(arrivals), 2)
    figures["arrival_p99_ms"] = round(quantiles(arrivals, n=100)[98], 2)
    waiting = [w.id for w in bench.books.workloads.values() if w.phase is Phase.QUEUED]
    asked = [
        timed(lambda w=w: bench.scheduler.why(w)) * 1000 for w in bench.random.sample(waiting, 300)
    ]
    figures["why_p99_ms"] = round(quantiles(asked, n=100)[98], 2)
    figures["gang_preempt_ms"] = round(gang(bench) * 1000, 1)
    figures["rss_mib"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    return figures


def gang(bench: Bench) -> float:
    """Seconds from the submission of a gang of 512 GPUs to others being asked to yield to it."""
    took = []
    for team in GANG_TEAMS[:5]:
        spec = bench.spec(team=team, gpus=8, nodes=64, min_runtime_seconds=900.0)
        began = perf_counter()
        workload = bench.submit(spec)
        bench.decided(workload)
        took.append(perf_counter() - began)
        reason = bench.scheduler.why(workload.id).reason
        assert reason == "being_freed", f"nobody yields to the gang: {reason}"
    return median(took)


def growth(nodes: int) -> float:
    """A pass for one arrival with 10,000 running against one with 1,000, on the same fleet."""
    took = []
    for running in (1_000, 10_000):
        bench = Bench(nodes, StoreThatForgets())
        for _ in range(running):
            bench.submit(bench.spec(gangs=False, gpus=1, nodes=1, min_runtime_seconds=28800.0))
        bench.scheduler.settle()
        bench.all_run()
        bench.scheduler.settle()
        passes = []
        for _ in range(200):
            bench.submit(bench.spec(gangs=False))
            passes.append(timed(bench.scheduler.tick))
        took.append(median(passes))
    return round(took[1] / took[0], 2)


def durable(nodes: int, admissions: int) -> dict[str, float]:
    """Figures with SQLite on disk."""
    with TemporaryDirectory(prefix="bench-scheduler-") as folder:
        path = Path(folder) / "scheduler.sqlite"
        store = open_database(f"sqlite:///{path}")
        bench = Bench(nodes, store)
        specs = [bench.spec(gangs=False, gpus=1, nodes=1) for _ in range(admissions)]
        submitting = timed(lambda: [bench.submit(spec) for spec in specs])
        placing = timed(bench.scheduler.settle)
        assert len(bench.running()) == admissions
        for _ in range(4 * admissions):
            bench.submit(bench.spec())
        bench.scheduler.settle()
        bench.scheduler.close()
        restart = timed(lambda: Bench(nodes, open_database(f"sqlite:///{path}")).scheduler.tick())
    return {
        "durable_admissions_per_s": round(admissions / placing),
        "durable_submissions_per_s": round(admissions / submitting),
        "restart_s": round(restart, 2),
        "restart_workloads": 5 * admissions,
    }


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--running", type=int, default=5000)
    parser.add_argument("--pending", type=int, default=20000)
    parser.add_argument("--admissions", type=int, default=3000)
    given = parser.parse_args()
    figures: dict[str, Any] = engine(given.nodes, given.running, given.pending)
    figures["growth"] = growth(given.nodes)
    figures |= durable(given.nodes, given.admissions)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
