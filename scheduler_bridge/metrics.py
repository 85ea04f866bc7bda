"""Metrics `hubernate_*`: counted as things happen, gauges read from the books when asked."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from scheduler_bridge.engine.books import Books
from scheduler_bridge.engine.ledger import Ledger
from scheduler_bridge.engine.presence import standing_of
from scheduler_bridge.ledger_metrics import LedgerCollector
from scheduler_bridge.model.nodes import NodeStanding
from scheduler_bridge.model.workload import Event

_WAIT_BUCKETS = (0.1, 1, 5, 30, 60, 300, 900, 3600, 4 * 3600, 24 * 3600)


class Metrics:
    """One registry per scheduler, so that several may live in one process."""

    def __init__(self, books: Books, ledger: Ledger) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Gauges(books))
        self._registry.register(LedgerCollector(books, ledger))
        self._moves = Counter(
            "hubernate_moves",
            "Phase changes.",
            ("source", "target"),
            registry=self._registry,
        )
        self._preemptions = Counter(
            "hubernate_preemptions",
            "Workloads asked to yield, by reason.",
            ("reason",),
            registry=self._registry,
        )
        self._hub_starts = Counter(
            "hubernate_hub_starts",
            "Starts asked of the Hub after it had stopped waiting.",
            ("accepted",),
            registry=self._registry,
        )
        self._waits = Histogram(
            "hubernate_queue_wait_seconds",
            "Time in the queue until placed.",
            buckets=_WAIT_BUCKETS,
            registry=self._registry,
        )
        self.cycles = Histogram(
            "hubernate_cycle_seconds", "Duration of a planning pass.", registry=self._registry
        )
        books.changed.append(self._count)

    def add(self, collector: Collector) -> None:
        """Ask this one too."""
        self._registry.register(collector)

    def text(self) -> bytes:
        """Everything, in Prometheus' text format."""
        return generate_latest(self._registry)

    def _count(self, events: Iterable[Event]) -> None:
        for event in events:
            if event.kind == "phase":
                self._moves.labels(event.source, event.target).inc()
                if "waited_seconds" in event.evidence:
                    self._waits.observe(event.evidence["waited_seconds"])
            elif event.kind == "preempted":
                self._preemptions.labels(event.evidence["reason"]).inc()
            elif event.kind == "hub_start":
                self._hub_starts.labels(str(event.evidence["accepted"]).lower()).inc()


class _Gauges(Collector):
    def __init__(self, books: Books) -> None:
        self._books = books

    def collect(self) -> Iterable[Metric]:
        yield self._workloads()
        yield self._gpus()
        yield self._nodes()
        pauses = GaugeMetricFamily(
            "hubernate_pause_until_seconds", "End of each active pause.", labels=("scope",)
        )
        for pause in self._books.active_pauses():
            pauses.add_metric((pause.scope,), pause.until)
        yield pauses

    def _workloads(self) -> Metric:
        family = GaugeMetricFamily(
            "hubernate_workloads", "Workloads that have not ended.", labels=("kind", "phase")
        )
        tally = Tally((w.spec.kind.value, w.phase.value) for w in self._books.workloads.values())
        for labels, count in sorted(tally.items()):
            family.add_metric(labels, count)
        return family

    def _nodes(self) -> Metric:
        family = GaugeMetricFamily(
            "hubernate_nodes",
            "Machines of the fleet: ready, unready, silent (no new work, leases kept) or dead.",
            labels=("state",),
        )
        tally = Tally(
            standing_of(node, self._books.node_record(node.name)).value
            for node in self._books.inventory
        )
        for state in NodeStanding:
            if state is not NodeStanding.UNKNOWN:
                family.add_metric((state.value,), tally[state.value])
        return family

    def _gpus(self) -> Metric:
        family = GaugeMetricFamily(
            "hubernate_gpus", "GPUs of the fleet.", labels=("node", "state", "virtual")
        )
        holders = self._books.holders()
        tally = Tally(
            (
                gpu.node,
                "leased" if gpu.uuid in holders else "free",
                str(gpu.virtual).lower(),
            )
            for node in self._books.nodes
            for gpu in node.gpus
        )
        for labels, count in sorted(tally.items()):
            family.add_metric(labels, count)
        return family
