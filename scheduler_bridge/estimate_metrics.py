"""How well estimates of starts came true, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from scheduler_bridge.engine.estimates import Estimates
from scheduler_bridge.policy.estimates import PROBABILITIES


class EstimateCollector(Collector):
    """Reads the scheduler's own counts, which survive a restart."""

    def __init__(self, estimates: Estimates) -> None:
        self._estimates = estimates

    def collect(self) -> Iterable[Metric]:
        compared = CounterMetricFamily(
            "hubernate_estimates_compared",
            "Estimates of starts of the last 30 days that could be compared, by whether they came true.",
            labels=("basis", "right"),
        )
        open_ = GaugeMetricFamily(
            "hubernate_estimates_open", "Estimates that are not due yet.", labels=("basis",)
        )
        coverage = GaugeMetricFamily(
            "hubernate_estimate_coverage_ratio",
            "Share of the compared estimates that came true.",
            labels=("basis",),
        )
        promised = GaugeMetricFamily(
            "hubernate_estimate_probability_ratio",
            "Share of estimates that is meant to come true.",
            labels=("basis",),
        )
        for basis in self._estimates.bases():
            found = self._estimates.calibration(basis)
            compared.add_metric((basis, "true"), found.right)
            compared.add_metric((basis, "false"), found.compared - found.right)
            open_.add_metric((basis,), found.open)
            if found.measured is not None:
                coverage.add_metric((basis,), found.measured)
            promised.add_metric((basis,), PROBABILITIES[basis])
        yield from (compared, open_, coverage, promised)
