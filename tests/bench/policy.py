"""What our planner does with a month of work, beside three references: one JSON object on the last line.

`TRACE=philly.csv python -m tests.bench.policy [--seed 1] [--workers 2] [--days 30]`. Without TRACE, work
with the trace's distributions takes its place (`philly_trace` says which it was). Philly trace:
Microsoft, msr-fiddle/philly-traces, CC-BY-4.0. Fixed seed; checkpoints log-normal with a median of 30
minutes, one job in ten never saves; grace 60 s, suspend and restore 20 s, start 30 s. Everything is
simulated; nothing is written to a database. `sim_events_per_s` and `month_s` are of the processor's time
of one core, for ours in `ai2`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from scheduler_bridge.simulator.ours import Ours
from scheduler_bridge.simulator.report import Figures
from scheduler_bridge.simulator.scenarios import (
    REFERENCES,
    Request,
    Result,
    at_restore_cost,
    simulate_all,
)

SCENARIOS = ("ai2", "philly-96x8", "philly-80x8")
RESTORE_SECONDS = (5.0, 20.0, 60.0)


def headline(figures: Figures) -> dict[str, Any]:
    """What issue and docs quote of one policy in one scenario."""
    return {
        "debug_wait_p90_s": figures.debug_wait.p90,
        "debug_wait_p99_s": figures.debug_wait.p99,
        "wait_median_s": figures.wait.median,
        "wait_p90_s": figures.wait.p90,
        "max_wait_s": figures.wait.max,
        "max_allocated_wait_s": figures.allocated_wait.max,
        "return_wait_p95_s": figures.return_wait.p95,
        "occupancy": figures.occupancy,
        "occupancy_offered": figures.occupancy_offered,
        "owed_delivered": figures.owed_delivered,
        "worst_team": figures.worst_team,
        "lost_work": figures.lost_work,
        "unallocated": figures.unallocated,
        "fragmentation": figures.fragmentation,
        "preemptions": figures.preemptions,
        "preempted_most_in_a_day": figures.preempted_most,
        "protection_violations": figures.protection_violations,
        "ping_pong": figures.ping_pong,
        "rules_broken": sum(figures.violations.values()),
        "unstarted": figures.unstarted,
        "jobs": figures.jobs,
        "days": figures.days,
        "cpu_s": figures.seconds,
        "events_per_s": figures.events_per_second,
    }


def sensitive(figures: Figures) -> dict[str, Any]:
    """What the cost of a restore can change."""
    whole = headline(figures)
    names = ("debug_wait_p90_s", "occupancy", "owed_delivered", "worst_team", "lost_work")
    return {name: whole[name] for name in (*names, "preemptions", "ping_pong")}


def requests(arguments: argparse.Namespace, trace: Path | None) -> list[Request]:
    """Ours first in each scenario, then the references, then ours at other costs."""
    plain = [
        Request(scenario, policy, trace, arguments.seed, arguments.days)
        for policy in (Ours.name, *REFERENCES)
        for scenario in SCENARIOS
    ]
    dear = [
        at_restore_cost(request, seconds)
        for seconds in RESTORE_SECONDS
        for request in plain
        if request.policy == Ours.name and seconds != request.costs.restore
    ]
    return plain + dear


def collected(results: list[Result], trace: Path | None) -> dict[str, Any]:
    """The one object."""
    found: dict[str, Any] = {name: {} for name in SCENARIOS}
    found["references"] = {name: {} for name in REFERENCES}
    found["restore_cost"] = {f"{seconds:.0f}": {} for seconds in RESTORE_SECONDS}
    standard = Request().costs.restore
    for result in results:
        request, figures = result.request, result.figures
        if request.policy != Ours.name:
            found["references"][request.policy][request.scenario] = headline(figures)
            continue
        cost = request.costs.restore
        found["restore_cost"][f"{cost:.0f}"][request.scenario] = sensitive(figures)
        if cost == standard:
            found[request.scenario] = headline(figures)
    month = found["ai2"]
    found["sim_events_per_s"] = month["events_per_s"]
    found["month_s"] = round(month["cpu_s"] * 30 / month["days"], 1)
    found["philly_trace"] = "microsoft" if trace else "generated"
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--days", type=float, help="shorter, to try it out; not with TRACE")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    trace = Path(os.environ["TRACE"]) if os.environ.get("TRACE") else None

    def tell(result: Result) -> None:
        it, cost = result.figures, result.request.costs.restore
        print(
            f"{it.scenario} {it.policy} (restore {cost:.0f} s): debug p90 {it.debug_wait.p90:.0f} s, "
            f"occupancy {it.occupancy:.3f}, owed {it.owed_delivered:.3f}, worst {it.worst_team:.3f}, "
            f"lost {it.lost_work:.4f}, {it.seconds:.0f} s",
            file=sys.stderr,
            flush=True,
        )

    asked = requests(arguments, trace)
    results = list(simulate_all(asked, workers=arguments.workers, done=tell))
    print(json.dumps(collected(results, trace)))


if __name__ == "__main__":
    main()
