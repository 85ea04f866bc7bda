"""Metrics of the ledger, read from it when asked."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from scheduler_bridge.engine.books import Books
from scheduler_bridge.engine.ledger import Ledger
from scheduler_bridge.model.usage import Tag


class LedgerCollector(Collector):
    """GPU time by team and tag, balances, and whether the ledger agrees with the leases."""

    def __init__(self, books: Books, ledger: Ledger) -> None:
        self._books, self._ledger = books, ledger

    def collect(self) -> Iterable[Metric]:
        now = self._books.clock.now()
        yield self._used(now)
        balances = GaugeMetricFamily(
            "hubernate_team_balance_gpu_seconds",
            "Owed less delivered within the usage window, sub-teams included.",
            labels=("team",),
        )
        for name, it in self._ledger.standing(now).items():
            balances.add_metric((name,), it.balance)
        yield balances
        yield GaugeMetricFamily(
            "hubernate_ledger_mismatch_gpus",
            "GPUs by which ledger and leases differed at the last check; anything but 0 is a fault.",
            value=self._ledger.mismatch_gpus,
        )

    def _used(self, now: float) -> Metric:
        family = CounterMetricFamily(
            "hubernate_gpu_seconds",
            "GPU time since the scheduler began, by charged team. What has several tags counts "
            "under each; allocated and unallocated make up all that was held.",
            labels=("team", "tag"),
        )
        by_tag: dict[tuple[str, str], float] = {}
        for (team, tags), seconds in self._ledger.used(now).items():
            for tag in Tag(tags):
                labels = (team, str(tag.name).lower())
                by_tag[labels] = by_tag.get(labels, 0.0) + seconds
        for labels in sorted(by_tag):
            family.add_metric(labels, by_tag[labels])
        return family
