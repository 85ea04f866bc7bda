"""`make bench-policy` prints what the figures are quoted from."""

from __future__ import annotations

import argparse
import json

from scheduler_bridge.simulator.scenarios import simulate_all
from tests.bench.policy import RESTORE_SECONDS, SCENARIOS, collected, requests

QUOTED = {
    "debug_wait_p90_s",
    "occupancy",
    "owed_delivered",
    "worst_team",
    "protection_violations",
    "ping_pong",
    "lost_work",
    "return_wait_p95_s",
    "max_wait_s",
}


def test_the_one_object_has_every_figure_of_every_policy() -> None:
    asked = requests(argparse.Namespace(seed=1, days=0.05), None)
    assert len(asked) == 3 * 4 + 3 * 2
    found = json.loads(json.dumps(collected(list(simulate_all(asked, workers=1)), None)))
    assert set(found["references"]) == {"fifo", "fairshare", "borrow"}
    for figures in (found, *found["references"].values()):
        for scenario in SCENARIOS:
            assert set(figures[scenario]) >= QUOTED
            assert figures[scenario]["rules_broken"] == 0
    assert set(found["restore_cost"]) == {f"{seconds:.0f}" for seconds in RESTORE_SECONDS}
    assert all(set(found["restore_cost"][cost]) == set(SCENARIOS) for cost in found["restore_cost"])
    assert found["sim_events_per_s"] > 0
    assert found["philly_trace"] == "generated"
